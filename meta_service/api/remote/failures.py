"""What a failed gRPC call means. The other side of `server.failures`."""

from __future__ import annotations

from typing import Final

import grpc

from lakemq.meta_service.api.errors import (
    BY_CODE,
    Compacted,
    MetaError,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
)

_NOT_SENT: Final = ("failed to connect to all addresses", "errors resolving", "DNS resolution")
"""How gRPC begins to say that there was no connection to send a call on."""


class Refused(Exception):
    """A write that failed within a call that succeeded."""

    def __init__(self, error: MetaError, leader: str) -> None:
        """`leader`: its address if it was named."""
        super().__init__(str(error))
        self.error = error
        self.leader = leader


def error_of_failure(failure: grpc.aio.AioRpcError | Refused) -> tuple[MetaError, str]:
    """(the error, address of the leader if one was named)."""
    if isinstance(failure, Refused):
        return failure.error, failure.leader if isinstance(failure.error, NotLeader) else ""
    trailers = {
        key: value for key, value in failure.trailing_metadata() or () if isinstance(value, str)
    }
    message = failure.details() or failure.code().name
    kind = BY_CODE.get(trailers.get("lakemq-error", ""))
    if kind is None:
        # Nothing left this process, so the failure is definite: a write may be tried again
        # elsewhere.
        if failure.code() is grpc.StatusCode.UNAVAILABLE and message.startswith(_NOT_SENT):
            reason = message.rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
            return NoLeader(f"no member can be reached: {reason}"), ""
        # No member answered: the request may have arrived.
        if failure.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED):
            return MetaError(message), ""
        return OutcomeUnknown(message), ""
    if issubclass(kind, Compacted):
        return kind(message, int(trailers.get("lakemq-revision", "0"))), ""
    return kind(message), trailers.get("lakemq-leader", "")
