"""What consumers of a queue were given and answered, and what that must not show."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass

Place = tuple[int, int]
"""(partition, offset)"""


@dataclass
class Given:
    """One delivery, as its consumer saw it."""

    place: Place
    attempt: int
    at_s: float
    answer: str = ""
    """`settled` or `failed`, when that was answered; empty: it was not."""
    answered_s: float = 0.0


class QueueHistory:
    """Written by threads of one process, so by one clock: `now_s`."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self.deliveries: list[Given] = []
        self.settlements = 0
        self._lock = threading.Lock()

    def given(self, place: Place, attempt: int) -> Given:
        """A record has reached its consumer."""
        with self._lock:
            self.deliveries.append(Given(place, attempt, self._now_s()))
            return self.deliveries[-1]

    def settled(self, given: Given) -> None:
        """The broker has answered that it will never come again."""
        self._answered(given, "settled")

    def failed(self, given: Given) -> None:
        """The broker has answered that this attempt failed."""
        self._answered(given, "failed")

    def _answered(self, given: Given, answer: str) -> None:
        with self._lock:
            given.answer, given.answered_s = answer, self._now_s()
            self.settlements += 1


def judged(
    history: QueueHistory,
    places: Collection[Place],
    sour: Collection[Place],
    letters: Counter[Place],
) -> list[str]:
    """What is wrong with a history. `places`: all records; `sour`: those that were handed back each
    time; `letters`: how often each is in the topic of dead letters."""
    wrong: list[str] = []
    by_place: dict[Place, list[Given]] = defaultdict(list)
    for each in history.deliveries:
        by_place[each.place].append(each)
    for place in sorted(places):
        given = by_place.pop(place, [])
        if not given:
            wrong.append(f"{place} was never given")
        wrong += _again(place, given)
        expected = int(place in sour)
        if letters[place] != expected:
            wrong.append(f"{place} is {letters[place]} times a dead letter, not {expected}")
    wrong += [f"{place} was given, and is no record" for place in by_place]
    wrong += [f"{place} is a dead letter, and no record" for place in letters.keys() - places]
    return wrong


def _again(place: Place, given: list[Given]) -> list[str]:
    """Of one record: settled twice, given again though it was settled, attempts that go back."""
    wrong: list[str] = []
    settled = [each for each in given if each.answer == "settled"]
    if len(settled) > 1:
        wrong.append(f"{place} was settled {len(settled)} times")
    for done in settled:
        wrong += [
            f"{place} was given {each.at_s - done.answered_s:.3f} s after it had been settled"
            for each in given
            if each.at_s > done.answered_s
        ]
    for failed in (each for each in given if each.answer == "failed"):
        wrong += [
            f"{place} was given for attempt {each.attempt} after attempt {failed.attempt} failed"
            for each in given
            if each.at_s > failed.answered_s and each.attempt <= failed.attempt
        ]
    return wrong
