"""The future of a record is as any of asyncio, though its batch knows it only once it is waited
for."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable

import pytest

from lakemq.broker_core.api.errors import NotAuthorized
from lakemq.broker_core.api.types import Acks
from lakemq.plugins.native.sdk.producer.pending import Appended, PendingRecords
from lakemq.plugins.native.sdk.producer.record_future import RecordFuture, future_of_last
from lakemq.plugins.native.sdk.types import NewRecord, RecordMetadata

APPENDED = Appended("t", 3, 40, [5, 6], Acks.LEADER)
PLACES = [RecordMetadata("t", 3, 40, 5, Acks.LEADER), RecordMetadata("t", 3, 41, 6, Acks.LEADER)]
REFUSED = NotAuthorized("no")


def taken() -> tuple[PendingRecords, list[RecordFuture]]:
    pending, futures = PendingRecords(1 << 20, 0), []
    for value in (b"a", b"b"):
        assert pending.add(NewRecord(value), 17)
        futures.append(future_of_last(pending, asyncio.get_running_loop()))
    return pending, futures


def settle(pending: PendingRecords, outcome: Appended | NotAuthorized) -> None:
    """As the producer does."""
    indexes, futures = pending.settle(outcome)
    if isinstance(outcome, Appended):
        for future, record in zip(futures, outcome.records(indexes), strict=True):
            if not future.cancelled():
                future.set_result(record)
    else:
        for future in futures:
            future.set_exception(outcome)


async def _wait(futures: list[RecordFuture]) -> list[RecordMetadata]:
    done, rest = await asyncio.wait(futures, timeout=10)
    assert done == set(futures) and not rest
    return [each.result() for each in futures]


async def _one_by_one(futures: list[RecordFuture]) -> list[RecordMetadata]:
    return [await asyncio.wait_for(each, 10) for each in futures]


async def _called(futures: list[RecordFuture]) -> list[RecordMetadata]:
    found: list[RecordMetadata] = []
    for each in futures:
        each.add_done_callback(lambda future: found.append(future.result()))
    for _ in range(2):  # turns of the loop: the outcome comes, then it is told
        await asyncio.sleep(0)
    return found


async def _gather(futures: list[RecordFuture]) -> list[RecordMetadata]:
    return list(await asyncio.gather(*futures))


async def _shield(futures: list[RecordFuture]) -> list[RecordMetadata]:
    return [await asyncio.shield(each) for each in futures]


async def _looked_at(futures: list[RecordFuture]) -> list[RecordMetadata]:
    await asyncio.sleep(0)
    assert all(each.done() for each in futures)
    return [each.result() for each in futures]


WAYS = [_wait, _one_by_one, _called, _gather, _shield, _looked_at]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("early", [True, False], ids=["early", "late"])
async def test_every_way_to_wait(
    way: Callable[[list[RecordFuture]], Awaitable[list[RecordMetadata]]], early: bool
) -> None:
    pending, futures = taken()
    assert not any(each.done() for each in futures)
    if early:
        asyncio.get_running_loop().call_soon(settle, pending, APPENDED)
    else:
        settle(pending, APPENDED)
    async with asyncio.timeout(30):
        assert await way(futures) == PLACES
    assert futures[1].exception() is None and not futures[1].cancel()


@pytest.mark.parametrize("early", [True, False], ids=["early", "late"])
async def test_a_refusal_is_raised(early: bool) -> None:
    pending, (first, second) = taken()
    if early:
        asyncio.get_running_loop().call_soon(settle, pending, REFUSED)
    else:
        settle(pending, REFUSED)
    with pytest.raises(NotAuthorized):
        await first
    assert second.done() and second.exception() is REFUSED


async def test_a_caller_that_is_cancelled_does_not_disturb_the_others() -> None:
    pending, (first, second) = taken()
    waiting = asyncio.create_task(asyncio.wait_for(first, 10))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled() and first.cancelled() and not second.done()
    settle(pending, APPENDED)
    assert first.cancelled() and second.result() == PLACES[1]


async def test_one_that_was_cancelled_before_it_was_waited_for_stays_so() -> None:
    pending, (first, _) = taken()
    assert first.cancel() and first.done()
    settle(pending, APPENDED)
    assert first.cancelled()
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_what_is_not_waited_for_is_not_kept() -> None:
    pending, futures = taken()
    kept = asyncio.create_task(asyncio.wait_for(futures[1], 10))
    await asyncio.sleep(0)
    first, second = map(weakref.ref, futures)
    futures.clear()
    gc.collect()
    assert first() is None and second() is not None and pending.unwatched == 1
    settle(pending, APPENDED)
    assert await kept == PLACES[1]


async def test_waiting_again_and_again_is_noted_once() -> None:
    pending, (first, _) = taken()
    for _ in range(5):
        await asyncio.wait([first], timeout=0)
    assert pending.settle(APPENDED) == ([0], [first])
