"""Goal: live items come once, in the order of their time, not before it; dead ones take no room."""

from __future__ import annotations

import random

import pytest

from lakemq.broker_core.api.scheduling.due_queue import DueQueue


def test_items_come_in_the_order_of_their_time_and_then_of_their_arrival() -> None:
    queue: DueQueue[str] = DueQueue(lambda item: True)
    for due_ms, item in ((20, "c"), (10, "a"), (10, "b")):
        queue.add(due_ms, item)
    assert queue.first() == (10, "a")
    assert [queue.take(15) for _ in range(3)] == ["a", "b", None]
    assert queue.take(20) == "c"
    assert (queue.first(), queue.take(99)) == (None, None)


def test_items_need_no_order_of_their_own() -> None:
    queue: DueQueue[object] = DueQueue(lambda item: True)
    queue.add(1, object())
    queue.add(1, object())
    assert queue.take(1) is not None


def test_what_is_dead_is_not_given() -> None:
    live = {"a", "b"}
    queue: DueQueue[str] = DueQueue(lambda item: item in live)
    for item in ("a", "b"):
        queue.add(1, item)
    live.discard("a")
    assert (queue.first(), queue.take(1), queue.take(1)) == ((1, "b"), "b", None)


def test_dead_items_take_no_room() -> None:
    live: set[int] = set()
    queue: DueQueue[int] = DueQueue(lambda item: item in live)
    for item in range(10_000):
        live.add(item)
        queue.add(10_000 - item, item)
        if item >= 10:
            live.discard(item - 10)
            queue.prune(len(live))
    assert len(queue) <= 2 * len(live) + 65
    assert [queue.take(10_000) for _ in range(11)] == [*range(9_999, 9_989, -1), None]


@pytest.mark.parametrize("seed", range(30))
def test_it_is_a_sorted_list(seed: int) -> None:
    dice = random.Random(seed)
    live: set[int] = set()
    queue: DueQueue[int] = DueQueue(lambda item: item in live)
    model: list[tuple[int, int]] = []
    for item in range(300):
        if dice.random() < 0.6:
            due_ms = dice.randint(0, 20)
            live.add(item)
            model.append((due_ms, item))
            queue.add(due_ms, item)
        elif model and dice.random() < 0.3:
            gone = model.pop(dice.randrange(len(model)))
            live.discard(gone[1])
            queue.prune(len(live))
        else:
            now_ms = dice.randint(0, 20)
            due = sorted(each for each in model if each[0] <= now_ms)
            expected = due[0] if due else None
            taken = queue.take(now_ms)
            assert taken == (expected[1] if expected else None), seed
            if expected:
                model.remove(expected)
                live.discard(expected[1])
