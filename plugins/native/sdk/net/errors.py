"""What a failed gRPC call means, as an error of the SDK."""

from __future__ import annotations

from typing import Final

import grpc

from lakemq.broker_core.api import errors
from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, LogTruncated, NotLeader
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.net.handshakes import tls_mistake

CLOSED: Final = "this client is closed"
_NO_ANSWER: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_WRITE_FAILED: Final = "Internal error from Core"
"""How `grpc.aio` ends a stream on which it wrote after the stream had ended: this text replaces
what the broker or the broken connection had reported (https://github.com/grpc/grpc/issues/36066).
The next attempt gets the actual reason."""
_CHANNEL_CLOSED: Final = "Channel closed!"
"""Of a blocking call under way when its channel is closed."""


class Unimplemented(LakeMQError):
    """The broker does not have the method that was called: it is older than this client."""


def error_of(error: pb.Error) -> LakeMQError:
    """The exception that an error inside a response stands for."""
    kind = errors.BY_CODE.get(error.code, LakeMQError)
    if issubclass(kind, NotLeader):
        return kind(
            error.message,
            leader=error.leader,
            address=error.leader_address,
            epoch=error.leader_epoch,
        )
    if issubclass(kind, LogTruncated):
        return kind(error.message, error.offset)
    return kind(error.message)


def error_from(error: grpc.RpcError, address: str) -> LakeMQError:
    """What a failed call on the node at `address` means: the broker's own error, or Unavailable."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return LakeMQError(f"broker at {address}: {error}")
    trailers = {key: value for key, value in error.trailing_metadata() or ()}
    code = trailers.get("lakemq-error")
    details = error.details() or ""
    if isinstance(code, str) and code in errors.BY_CODE:
        told = {key: value for key, value in trailers.items() if isinstance(value, str)}
        return error_of(
            pb.Error(
                code=code,
                message=details,
                leader=told.get("lakemq-leader", ""),
                leader_address=told.get("lakemq-leader-address", ""),
                leader_epoch=int(told.get("lakemq-leader-epoch") or 0),
                offset=int(told.get("lakemq-offset") or 0),
            )
        )
    if details == _CHANNEL_CLOSED:
        return InvalidRequest(CLOSED)
    return _by_status(error.code(), details, address)


def _by_status(status: grpc.StatusCode, details: str, address: str) -> LakeMQError:
    """Of a call that gRPC ended, not the broker."""
    if status == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return errors.BatchTooLarge(
            f"the broker at {address} does not accept a message of this size: {details}"
        )
    if status == grpc.StatusCode.UNAVAILABLE and (mistake := tls_mistake(details, address)):
        return errors.TlsFailed(f"broker at {address}: {mistake} ({details})")
    if status in _NO_ANSWER or details == _WRITE_FAILED:
        return errors.Unavailable(f"no answer from the broker at {address}: {details}")
    kind = Unimplemented if status == grpc.StatusCode.UNIMPLEMENTED else LakeMQError
    return kind(f"broker at {address}: {status.name}: {details}")
