"""When an interceptor is no longer called, and when it is tried again: a circuit breaker, pure.

Failures count for the topic whose records caused them, so that records of one topic cannot shut
out those of another; the time that calls take counts for the plugin, as the event loop stands
still for all.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from lakemq.broker_core.configuration.settings import InterceptorSettings

EVERY_TOPIC: Final = ""
"""In place of a topic: the plugin took too long."""
OVERRUN_WINDOW_S: Final = 60.0
"""Overruns that are longer ago do not count."""
_REASON_MAX: Final = 200
_STRIKES_MAX: Final = 10_000
"""Plugins and topics with failures that are remembered: topics may be made and deleted for ever."""


class Quarantine(NamedTuple):
    """An interceptor that is not called."""

    plugin: str
    topic: str
    """`EVERY_TOPIC`: for none."""
    reason: str
    until_s: float
    """When the next group of records is shown to it, on the clock of the caller."""

    def __str__(self) -> str:
        where = f"for topic {self.topic}" if self.topic else "for all topics"
        return f"its interceptor is quarantined {where}: {self.reason}"


class _Strikes:
    """Of one plugin, for one topic or all."""

    __slots__ = ("quarantine", "times")

    def __init__(self) -> None:
        self.times: deque[float] = deque()
        self.quarantine: Quarantine | None = None


class Breakers:
    """Of all plugins. `now_s` is monotonic."""

    def __init__(self, settings: InterceptorSettings) -> None:
        self.settings = settings
        self.begun: dict[str, int] = {}
        """Plugin -> quarantines since the start."""
        self._strikes: dict[tuple[str, str], _Strikes] = {}
        """Empty as long as nothing went wrong."""

    def __bool__(self) -> bool:
        """Whether anything went wrong that still counts."""
        return bool(self._strikes)

    def blocked(self, plugin: str, topic: str, now_s: float) -> Quarantine | None:
        """The quarantine because of which it is not to be called for the topic; None: call it,
        which tries it again where one has passed."""
        for where in (EVERY_TOPIC, topic):
            found = self._strikes.get((plugin, where))
            if found and found.quarantine and now_s < found.quarantine.until_s:
                return found.quarantine
        return None

    def failed(self, plugin: str, topic: str, now_s: float, reason: str) -> Quarantine | None:
        """It failed for all of a group's records; the quarantine that begins with it, if one
        does. One that goes on, as the plugin was tried in vain, is none."""
        most = self.settings.failures_max
        return self._strike(plugin, topic, most, now_s, float("-inf"), reason) if most else None

    def overran(self, plugin: str, now_s: float, seconds: float) -> Quarantine | None:
        """A call took longer than the budget; as `failed`."""
        most = self.settings.overruns_max
        if not most:
            return None
        reason = f"a call took {1000 * seconds:.0f} ms; budget_ms is {self.settings.budget_ms}"
        since_s = now_s - OVERRUN_WINDOW_S
        return self._strike(plugin, EVERY_TOPIC, most, now_s, since_s, reason)

    def _strike(
        self, plugin: str, where: str, most: int, now_s: float, since_s: float, reason: str
    ) -> Quarantine | None:
        if len(self._strikes) >= _STRIKES_MAX and (plugin, where) not in self._strikes:
            del self._strikes[next(iter(self._strikes))]
        struck = self._strikes.setdefault((plugin, where), _Strikes())
        times, before = struck.times, struck.quarantine
        times.append(now_s)
        while times[0] < since_s or len(times) > most:
            times.popleft()
        if before is None and len(times) < most:
            return None
        until_s = now_s + self.settings.cool_down_ms / 1000
        struck.quarantine = Quarantine(plugin, where, reason[:_REASON_MAX], until_s)
        if before is not None:
            return None
        self.begun[plugin] = self.begun.get(plugin, 0) + 1
        return struck.quarantine

    def worked(self, plugin: str, topic: str) -> list[Quarantine]:
        """A call ended well and in time; the quarantines that end with it."""
        ended = []
        for where in (EVERY_TOPIC, topic):
            found = self._strikes.get((plugin, where))
            # A quick call says nothing of slow ones beside it, unless it is the one on trial.
            if found is None or (where == EVERY_TOPIC and found.quarantine is None):
                continue
            del self._strikes[plugin, where]
            if found.quarantine is not None:
                ended.append(found.quarantine)
        return ended

    def resume(self, plugin: str) -> list[Quarantine]:
        """Forget what a plugin did; the quarantines that end with it."""
        ended = self.quarantines(plugin)
        for key in [key for key in self._strikes if key[0] == plugin]:
            del self._strikes[key]
        return ended

    def quarantines(self, plugin: str) -> list[Quarantine]:
        """Of one plugin, also those that wait for records to be tried with."""
        return [
            each.quarantine
            for (name, _), each in list(self._strikes.items())
            if name == plugin and each.quarantine is not None
        ]
