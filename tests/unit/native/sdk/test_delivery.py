"""The ack of a record in blocking programs is a future as any, though it is made late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, as_completed, wait
from typing import Any

import pytest

from lakemq.broker_core.api.errors import NotAuthorized
from lakemq.broker_core.api.types import Acks
from lakemq.plugins.native.sdk.blocking.producer import Delivery
from lakemq.plugins.native.sdk.types import RecordMetadata

PLACE = RecordMetadata("t", 0, 7, 5, Acks.LEADER)
REFUSED = NotAuthorized("no")
THREADS = 4
WAIT_S = 60


class _Notes:
    """What a producer is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def _note(self, *told: Any) -> None:
        self.told.append(told)


def delivery(notes: _Notes | None = None) -> Delivery:
    return Delivery(notes or _Notes(), None)  # type: ignore[arg-type]


def _called(ack: Future[RecordMetadata]) -> RecordMetadata:
    found: list[Future[RecordMetadata]] = []
    there = threading.Event()
    ack.add_done_callback(lambda each: (found.append(each), there.set()))
    assert there.wait(WAIT_S)
    return found[0].result()


WAYS: dict[str, Callable[[Future[RecordMetadata]], RecordMetadata]] = {
    "result": lambda ack: ack.result(WAIT_S),
    "exception": lambda ack: ack.result() if ack.exception(WAIT_S) is None else None,  # type: ignore[arg-type,return-value]
    "wait": lambda ack: next(iter(wait([ack], WAIT_S).done)).result(),
    "as_completed": lambda ack: next(as_completed([ack], WAIT_S)).result(),
    "called": _called,
}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_looked_at_before_and_after(way: str) -> None:
    notes = _Notes()
    late, early = delivery(notes), delivery(notes)
    late.set_result(PLACE)
    assert WAYS[way](late) == PLACE and late.done() and not late.cancel() and not late.cancelled()
    assert not early.done() and not early.cancel() and not early.running()
    setter = threading.Timer(0.01, early.set_result, [PLACE])
    setter.start()
    assert WAYS[way](early) == PLACE
    setter.join()
    assert notes.told == [(None, None, PLACE)] * 2


@pytest.mark.parametrize("early", [True, False], ids=["early", "late"])
def test_a_refusal_is_raised(early: bool) -> None:
    notes = _Notes()
    ack = delivery(notes)
    assert not early or not ack.done()
    ack.set_exception(REFUSED)
    with pytest.raises(NotAuthorized):
        ack.result(0)
    assert ack.exception() is REFUSED and notes.told == [(None, REFUSED, None)]


def test_one_that_no_caller_looks_at_is_never_made() -> None:
    """The producer itself does not look at it."""
    ack = delivery()
    assert not ack.cancelled()
    ack.set_result(PLACE)
    assert not ack._is_open and ack.result() == PLACE and ack._is_open


def test_what_no_future_has_it_has_not() -> None:
    assert not hasattr(delivery(), "results") and "pending" in repr(delivery())


def test_threads_look_while_the_outcome_comes() -> None:
    acks = [delivery() for _ in range(500)]
    found: list[RecordMetadata] = []
    begin = threading.Barrier(THREADS + 1)

    def look() -> None:
        begin.wait(WAIT_S)
        for ack in acks:
            found.append(ack.result(WAIT_S))

    threads = [threading.Thread(target=look, daemon=True) for _ in range(THREADS)]
    for each in threads:
        each.start()
    begin.wait(WAIT_S)
    for ack in acks:
        ack.set_result(PLACE)
    for each in threads:
        each.join(WAIT_S)
    assert found == [PLACE] * (len(acks) * THREADS)
