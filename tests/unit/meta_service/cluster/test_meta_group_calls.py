"""Goal: a change of the Raft group is asked for again where it was surely not made, and never where
it may have been."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from lakemq.meta_service.api.errors import InvalidArgument, OutcomeUnknown
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.proto import meta_pb2 as pb


def failure(code: grpc.StatusCode, details: str, error: str = "") -> grpc.aio.AioRpcError:
    trailers = grpc.aio.Metadata(*([("lakemq-error", error)] if error else []))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, details)


class Maintenance:
    """Fails as it is told, then answers."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.waits: list[float] = []

    async def ChangeGroup(self, request: Any, timeout: float) -> pb.ChangeGroupResponse:  # noqa: ASYNC109
        self.waits.append(timeout)
        if self.failures:
            raise self.failures.pop(0)
        return pb.ChangeGroupResponse(voters=["n1", "n2"])


class Member:
    def __init__(self, maintenance: Maintenance) -> None:
        self.address = "m:1"
        self.maintenance = maintenance


def client_of(maintenance: Maintenance) -> RemoteClient:
    client = RemoteClient(["m:1"], timeout_s=5.0, attempt_s=0.5)
    client._targets["m:1"] = Member(maintenance)  # type: ignore[assignment]
    return client


DOWN = failure(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: x")
GAVE_WAY = failure(grpc.StatusCode.FAILED_PRECONDITION, "it has handed over", "NOT_LEADER")


async def test_it_is_asked_again_where_nothing_was_done() -> None:
    maintenance = Maintenance(DOWN, GAVE_WAY)
    assert await client_of(maintenance).remove_member("n3") == ["n1", "n2"]
    # An attempt has the whole time: a majority has to store the change.
    assert len(maintenance.waits) == 3 and min(maintenance.waits) > 4


@pytest.mark.parametrize(
    "lost",
    [
        failure(grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"),
        failure(grpc.StatusCode.UNKNOWN, "the leadership was lost", "OUTCOME_UNKNOWN"),
    ],
    ids=["closed", "late", "unknown"],
)
async def test_it_is_not_asked_again_where_it_may_have_been_done(lost: Exception) -> None:
    maintenance = Maintenance(GAVE_WAY, lost)
    with pytest.raises(OutcomeUnknown):
        await client_of(maintenance).promote_member("n3")
    assert len(maintenance.waits) == 2


async def test_a_refusal_is_told() -> None:
    refusal = failure(grpc.StatusCode.INVALID_ARGUMENT, "group: n3 lacks 200", "INVALID_ARGUMENT")
    with pytest.raises(InvalidArgument, match="lacks 200"):
        await client_of(Maintenance(refusal)).promote_member("n3")
