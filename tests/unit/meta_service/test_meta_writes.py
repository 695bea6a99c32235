"""Writes that share calls: who goes with whom, and that each keeps its own outcome."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from lakemq.meta_service.api.errors import (
    InvalidArgument,
    MetaError,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
)
from lakemq.meta_service.api.remote.failures import Refused, error_of_failure
from lakemq.meta_service.api.remote.writes import CALLS_MAX, WRITES_MAX, Writes
from lakemq.meta_service.proto import meta_pb2 as pb


def failure(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "no")


class Kv:
    """A stub whose calls are answered by the test."""

    def __init__(self) -> None:
        self.alone: list[tuple[Any, asyncio.Future[Any]]] = []
        self.together: list[tuple[pb.WriteRequest, asyncio.Future[Any]]] = []

    async def Put(self, request: Any, timeout: float) -> Any:  # noqa: ASYNC109 - gRPC's name
        self.alone.append((request, asyncio.get_running_loop().create_future()))
        return await self.alone[-1][1]

    Delete = Txn = Put

    async def Write(self, request: pb.WriteRequest, timeout: float) -> Any:  # noqa: ASYNC109 - gRPC's name
        self.together.append((request, asyncio.get_running_loop().create_future()))
        return await self.together[-1][1]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def put(writes: Writes, number: int, size: int = 1, timeout_s: float = 9.0) -> asyncio.Task[Any]:
    request = pb.PutRequest(key=b"%d" % number, value=bytes(size))
    return asyncio.create_task(writes.put(request, timeout=timeout_s))


def keys(request: pb.WriteRequest) -> list[int]:
    return [int(write.put.key) for write in request.writes]


async def error_of(task: asyncio.Task[Any]) -> tuple[MetaError, str]:
    with pytest.raises((Refused, grpc.aio.AioRpcError)) as caught:
        await task
    return error_of_failure(caught.value)


async def test_the_first_write_goes_alone_and_the_others_together() -> None:
    kv = Kv()
    writes = Writes(kv)
    tasks = [put(writes, number) for number in range(5)]
    await settle()
    assert [request.key for request, _ in kv.alone] == [b"0"]
    assert [keys(request) for request, _ in kv.together] == [[1, 2, 3, 4]]
    kv.together[0][1].set_result(
        pb.WrittenResponse(written=[pb.Written(revision=10 + n) for n in range(4)])
    )
    kv.alone[0][1].set_result(pb.WriteResponse(revision=9))
    assert [(await task).revision for task in tasks] == [9, 10, 11, 12, 13]


async def test_each_write_has_its_own_outcome() -> None:
    kv = Kv()
    writes = Writes(kv)
    tasks = [put(writes, number) for number in range(5)]
    await settle()
    written = [
        pb.Written(revision=7, held=True),
        pb.Written(error="INVALID_ARGUMENT", message="key: must not be empty"),
        pb.Written(error="NOT_LEADER"),
        pb.Written(error="OUTCOME_UNKNOWN"),
    ]
    kv.together[0][1].set_result(pb.WrittenResponse(written=written, leader="10.0.0.2:1"))
    answer = await tasks[1]
    assert (answer.revision, answer.held) == (7, True)
    outcomes = [await error_of(task) for task in tasks[2:]]
    assert [type(error) for error, _ in outcomes] == [InvalidArgument, NotLeader, OutcomeUnknown]
    assert [leader for _, leader in outcomes] == ["", "10.0.0.2:1", ""]
    assert str(outcomes[0][0]) == "key: must not be empty"
    tasks[0].cancel()


async def test_a_lost_call_leaves_all_its_writes_unknown() -> None:
    kv = Kv()
    writes = Writes(kv)
    tasks = [put(writes, number) for number in range(3)]
    await settle()
    kv.together[0][1].set_exception(failure(grpc.StatusCode.UNAVAILABLE))
    assert [type((await error_of(task))[0]) for task in tasks[1:]] == [OutcomeUnknown] * 2
    kv.alone[0][1].set_exception(failure(grpc.StatusCode.UNAVAILABLE))
    assert type((await error_of(tasks[0]))[0]) is OutcomeUnknown


async def test_too_few_answers_are_no_answers() -> None:
    kv = Kv()
    writes = Writes(kv)
    tasks = [put(writes, number) for number in range(3)]
    await settle()
    kv.together[0][1].set_result(pb.WrittenResponse(written=[pb.Written(revision=1)]))
    assert [type((await error_of(task))[0]) for task in tasks[1:]] == [OutcomeUnknown] * 2
    tasks[0].cancel()


async def test_an_older_member_gets_them_one_by_one() -> None:
    kv = Kv()
    writes = Writes(kv)
    tasks = [put(writes, number) for number in range(4)]
    await settle()
    kv.together[0][1].set_exception(failure(grpc.StatusCode.UNIMPLEMENTED))
    await settle()
    assert [request.key for request, _ in kv.alone] == [b"0", b"1", b"2", b"3"]
    for number, (_, answer) in enumerate(kv.alone):
        if number == 2:
            answer.set_exception(failure(grpc.StatusCode.UNAVAILABLE))
        else:
            answer.set_result(pb.WriteResponse(revision=number))
    assert type((await error_of(tasks[2]))[0]) is OutcomeUnknown
    assert [(await tasks[number]).revision for number in (0, 1, 3)] == [0, 1, 3]


async def test_only_some_calls_are_under_way() -> None:
    kv = Kv()
    writes = Writes(kv)
    tasks = []
    for number in range(10):
        tasks.append(put(writes, number))
        await settle()
    assert len(kv.alone) + len(kv.together) == CALLS_MAX
    kv.alone[0][1].set_result(pb.WriteResponse(revision=1))
    await settle()
    assert keys(kv.together[-1][0]) == list(range(CALLS_MAX, 10))
    await writes.close()
    tasks[0].cancel()


async def test_a_call_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakemq.meta_service.api.remote.writes.CALLS_MAX", 4)
    kv = Kv()
    writes = Writes(kv)
    tasks = [put(writes, number) for number in range(WRITES_MAX + 11)]
    tasks += [put(writes, number, size=700_000) for number in range(2)]
    await settle()
    assert [len(request.writes) for request, _ in kv.together] == [WRITES_MAX, 11, 1]
    await writes.close()
    await asyncio.gather(*tasks[1:], return_exceptions=True)
    assert all(task.cancelled() for task in tasks[1:])
    tasks[0].cancel()


async def test_what_nobody_waits_for_is_not_sent() -> None:
    kv = Kv()
    writes = Writes(kv)
    tasks = []
    for number in range(CALLS_MAX):
        tasks.append(put(writes, number))
        await settle()
    gone, late, wanted = put(writes, 100), put(writes, 101, timeout_s=0), put(writes, 102)
    await settle()
    gone.cancel()
    await settle()
    kv.alone[0][1].set_result(pb.WriteResponse(revision=1))
    await settle()
    assert keys(kv.together[-1][0]) == [102]
    assert type((await error_of(late))[0]) is Overloaded  # definite: it was never sent
    await writes.close()
    await asyncio.gather(*tasks, wanted, return_exceptions=True)


async def test_a_write_with_less_time_does_not_wait_for_the_call() -> None:
    kv = Kv()
    writes = Writes(kv)
    tasks = [put(writes, 0), put(writes, 1), put(writes, 2, timeout_s=0.01)]
    assert type((await error_of(tasks[2]))[0]) is OutcomeUnknown
    assert not tasks[1].done()
    await writes.close()
    await asyncio.gather(tasks[1], return_exceptions=True)
    tasks[0].cancel()
