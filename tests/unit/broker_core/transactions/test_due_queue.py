"""Goal: what is scheduled comes once, in the order of its time, not before it; what is held counts
until it is removed; dead entries take no room.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from lakemq.broker_core.api.scheduling.due_queue import DueQueue


@dataclass(eq=False)
class Item:
    """Something to wait for; items have no order of their own."""

    key: str
    due_ms: int
    size_bytes: int = 1


def queue_of(*items: Item) -> DueQueue[Item]:
    queue: DueQueue[Item] = DueQueue()
    for item in items:
        queue.add(item)
        queue.schedule(item)
    return queue


def taken(
    queue: DueQueue[Item], now_ms: int, count_max: int = 100, bytes_max: int | None = None
) -> str:
    return "".join(item.key for item in queue.take(now_ms, count_max, bytes_max))


def test_items_come_once_in_the_order_of_their_time_and_then_of_their_arrival() -> None:
    queue = queue_of(Item("c", 20), Item("a", 10), Item("b", 10))
    assert queue.next_ms() == 10
    assert [taken(queue, now_ms) for now_ms in (9, 10, 10, 19)] == ["", "ab", "", ""]
    assert queue.next_ms() == 20
    assert (taken(queue, 99), queue.next_ms()) == ("c", None)


def test_only_what_is_scheduled_comes() -> None:
    a, b = Item("a", 1), Item("b", 2)
    queue = queue_of(b)
    queue.add(a)
    assert (queue.is_scheduled("a"), queue.is_scheduled("b")) == (False, True)
    assert (taken(queue, 9), queue.is_scheduled("b"), queue.next_ms()) == ("b", False, None)
    queue.schedule(a)
    queue.schedule(b, 30)
    assert (taken(queue, 29), taken(queue, 30)) == ("a", "b")
    queue.schedule(a, 0)
    queue.unschedule("a")
    queue.unschedule("unknown")
    assert (taken(queue, 99), queue.get("a"), queue.get("b")) == ("", a, b)


def test_what_is_held_counts_until_it_is_removed() -> None:
    a, b = Item("a", 1, 10), Item("b", 2, 5)
    queue = queue_of(a, b)
    assert taken(queue, 9) == "ab"
    assert (len(queue), queue.size_bytes, list(queue)) == (2, 15, [a, b])
    assert (queue.remove("a"), queue.remove("a"), queue.get("a")) == (a, None, None)
    assert (len(queue), queue.size_bytes, list(queue)) == (1, 5, [b])
    queue.schedule(a)
    assert (taken(queue, 99), queue.is_scheduled("a"), queue.next_ms()) == ("", False, None)


def test_the_newest_of_a_key_counts() -> None:
    old, new = Item("a", 1, 10), Item("a", 5, 3)
    queue = queue_of(old, new)
    queue.schedule(old)
    assert (len(queue), queue.size_bytes, queue.next_ms()) == (1, 3, 5)
    assert queue.take(9, 9) == [new]


def test_what_is_scheduled_again_comes_at_its_newest_time() -> None:
    a = Item("a", 5)
    queue = queue_of(a)
    queue.schedule(a, 20)
    assert (queue.next_ms(), taken(queue, 19), taken(queue, 20), taken(queue, 99)) == (
        20,
        "",
        "a",
        "",
    )


def test_as_much_comes_as_goes_at_a_time_but_one_at_least() -> None:
    queue = queue_of(*(Item(key, 1, 10) for key in "abcdefg"))
    assert (taken(queue, 9, 2), taken(queue, 9, 9, 20), taken(queue, 9, 9, 19)) == ("ab", "cd", "e")
    assert (taken(queue, 9, 9, 5), taken(queue, 9, 0), taken(queue, 9, 9)) == ("f", "g", "")


def test_dead_entries_take_no_room() -> None:
    queue: DueQueue[Item] = DueQueue()
    for number in range(10_000):
        item = Item(str(number), 10_000 - number)
        queue.add(item)
        queue.schedule(item)
        queue.remove(str(number - 10))
        assert len(queue._heap) <= 2 * len(queue) + 64
    assert [item.key for item in queue.take(10_000, 99)] == [*map(str, range(9_999, 9_989, -1))]


def test_the_order_survives_what_dead_entries_leave() -> None:
    dice = random.Random(1)
    queue = queue_of(*(Item(str(number), dice.randrange(10**6)) for number in range(2000)))
    for number in dice.sample(range(2000), 1900):
        queue.remove(str(number))
    times = [item.due_ms for item in queue.take(10**6, 2000)]
    assert (len(times), times) == (100, sorted(times))


def test_a_heap_that_is_mostly_live_is_not_made_again() -> None:
    queue = queue_of(*(Item(str(number), 1) for number in range(100)))
    heap = queue._heap
    for number in range(80):
        queue.remove(str(number))
    assert queue._heap is heap


@pytest.mark.parametrize("seed", range(30))
def test_it_is_a_sorted_list(seed: int) -> None:
    dice = random.Random(seed)
    queue: DueQueue[Item] = DueQueue()
    held: dict[str, Item] = {}
    model: list[tuple[int, int, str]] = []
    """Time, turn in which it was scheduled, key."""
    for turn in range(400):
        key = str(dice.randrange(40))
        move = dice.random()
        if move < 0.3:
            held[key] = Item(key, dice.randint(0, 20), dice.randint(1, 9))
            queue.add(held[key])
            model = [each for each in model if each[2] != key]
        elif move < 0.6 and key in held:
            due_ms = dice.choice([None, dice.randint(0, 20)])
            queue.schedule(held[key], due_ms)
            model = [each for each in model if each[2] != key]
            model.append((held[key].due_ms if due_ms is None else due_ms, turn, key))
        elif move < 0.7:
            assert queue.remove(key) is held.pop(key, None)
            model = [each for each in model if each[2] != key]
        elif move < 0.75:
            queue.unschedule(key)
            model = [each for each in model if each[2] != key]
        elif move > 0.9:
            now_ms, count_max = dice.randint(0, 20), dice.randint(1, 3)
            due = sorted(each for each in model if each[0] <= now_ms)[:count_max]
            assert queue.take(now_ms, count_max) == [held[each[2]] for each in due], seed
            model = [each for each in model if each not in due]
        assert queue.next_ms() == min((each[0] for each in model), default=None), seed
        assert len(queue) == len(held)
        assert queue.size_bytes == sum(each.size_bytes for each in held.values())
