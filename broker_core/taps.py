"""Taps on topics: attached to every partition log of a topic, now and when more are opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lakemq.broker_core.api.ports import PartitionLog, Tap


class _Registration:
    """One `tap` call: the tap, and how to take it off each log."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self.removals: list[Callable[[], None]] = []

    def attach(self, log: PartitionLog) -> None:
        self.removals.append(log.tap(self.tap))

    def detach(self) -> None:
        for remove in self.removals:
            remove()
        self.removals.clear()


class Taps:
    """All taps of a broker, by topic name."""

    def __init__(self) -> None:
        self._by_topic: dict[str, list[_Registration]] = {}

    def add(self, topic: str, tap: Tap, logs: Iterable[PartitionLog]) -> Callable[[], None]:
        """Attach a tap to these logs and to all that are opened later; returns its removal."""
        registration = _Registration(tap)
        for log in logs:
            registration.attach(log)
        self._by_topic.setdefault(topic, []).append(registration)

        def remove() -> None:
            registration.detach()
            registrations = self._by_topic.get(topic, [])
            if registration in registrations:
                registrations.remove(registration)

        return remove

    def opened(self, topic: str, log: PartitionLog) -> None:
        """A log of the topic was opened: attach the topic's taps."""
        for registration in self._by_topic.get(topic, ()):
            registration.attach(log)

    def closed(self, topic: str) -> None:
        """The topic's logs are gone; taps stay, for a topic of that name created again."""
        for registration in self._by_topic.get(topic, ()):
            registration.detach()
