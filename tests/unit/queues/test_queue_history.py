"""Goal: what a queue must never do is seen in the history of its consumers."""

from __future__ import annotations

from collections import Counter

from tests.support.cluster.queue_history import Given, QueueHistory, judged

PLACES = [(0, 0), (0, 1)]
LETTERS = Counter({(0, 1): 1})


def history(*given: Given) -> QueueHistory:
    found = QueueHistory()
    found.deliveries += given
    return found


FINE = [
    Given((0, 0), 1, 1.0),
    Given((0, 0), 1, 2.0, "settled", 3.0),
    Given((0, 1), 1, 1.0, "failed", 2.0),
    Given((0, 1), 2, 3.0),
]


def wrong(*given: Given, letters: Counter[tuple[int, int]] = LETTERS) -> list[str]:
    return judged(history(*given), PLACES, [(0, 1)], letters)


def test_what_may_be() -> None:
    assert wrong(*FINE) == []


def test_what_must_not_be() -> None:
    assert wrong(*FINE[:2]) == ["(0, 1) was never given"]
    again = Given((0, 0), 2, 3.5)
    assert wrong(*FINE, again) == ["(0, 0) was given 0.500 s after it had been settled"]
    twice = Given((0, 0), 1, 1.5, "settled", 4.0)
    assert wrong(*FINE, twice) == ["(0, 0) was settled 2 times"]
    back = Given((0, 1), 1, 4.0)
    assert wrong(*FINE, back) == ["(0, 1) was given for attempt 1 after attempt 1 failed"]
    other = Given((7, 7), 1, 1.0)
    assert wrong(*FINE, other) == ["(7, 7) was given, and is no record"]


def test_dead_letters_come_once() -> None:
    none: Counter[tuple[int, int]] = Counter()
    assert wrong(*FINE, letters=none) == ["(0, 1) is 0 times a dead letter, not 1"]
    two = Counter({(0, 1): 2})
    assert wrong(*FINE, letters=two) == ["(0, 1) is 2 times a dead letter, not 1"]
    other = LETTERS + Counter({(0, 0): 1, (7, 7): 1})
    assert wrong(*FINE, letters=other) == [
        "(0, 0) is 1 times a dead letter, not 0",
        "(7, 7) is a dead letter, and no record",
    ]
