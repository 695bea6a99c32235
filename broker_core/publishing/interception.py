"""Calls the interceptors of plugins, so that one that fails refuses the publishes it failed on and
nothing else: whatever it raises is caught, what it returns is checked, and the time that it takes
is counted, because the event loop stands still meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Final

from lakemq.broker_core.api.errors import InterceptorFailed, LakeMQError
from lakemq.broker_core.api.ports import Interceptor
from lakemq.broker_core.api.records.headers import decode_headers
from lakemq.broker_core.api.types import Columns, Principal

_log = logging.getLogger(__name__)

SLOW_S: Final = 0.1
"""A call that takes longer is logged."""
SEARCH_S: Final = 0.1
"""How long a refused group is halved to find the records at fault; those that are not separated
by then are refused with them."""
LOG_EVERY_S: Final = 10.0
"""Between two log lines of one kind about one plugin."""
_CELLS: Final[dict[str, set[type]]] = {
    "values": {bytes, NoneType},
    "keys": {bytes, NoneType},
    "headers": {bytes},
    "timestamps_ms": {int},
}
_TIMES: Final = range(-(1 << 63), 1 << 63)

Piece = Columns | LakeMQError
"""Records to store in place of what came, or why they are refused."""


@dataclass(slots=True)
class Calls:
    """What one plugin's interceptors did since the start."""

    calls: int = 0
    failures: int = 0
    """Calls that raised, or returned what can't be stored."""
    slow: int = 0
    seconds: float = 0.0
    failure_told: float = float("-inf")
    slow_told: float = float("-inf")


class Interception:
    """Interceptors of all plugins, in their order."""

    def __init__(
        self, chain: Sequence[tuple[str, Interceptor]], clock: Callable[[], float]
    ) -> None:
        """`chain`: (plugin, interceptor). `clock`: seconds, monotonic."""
        self._chain = tuple(chain)
        self._clock = clock
        self.calls = {plugin: Calls() for plugin, _ in chain}

    def __bool__(self) -> bool:
        return bool(self._chain)

    def run(self, topic: str, columns: Columns, principal: Principal) -> list[tuple[int, Piece]]:
        """(how many records, what becomes of them), in the order of `columns`.

        One pair, as a rule. A group that is refused is tried again by halves, so that records
        that came with the one at fault are stored.
        """
        return self._run(topic, columns, principal, self._clock() + SEARCH_S)

    def _run(
        self, topic: str, columns: Columns, principal: Principal, deadline: float
    ) -> list[tuple[int, Piece]]:
        count = len(columns.values)
        try:
            passed = columns
            for plugin, interceptor in self._chain:
                passed = self._call(plugin, interceptor, topic, passed, principal)
            return [(count, passed)]
        except LakeMQError as error:
            # The search has an end, as the event loop stands still meanwhile.
            if count < 2 or self._clock() >= deadline:
                return [(count, error)]
        middle = count // 2
        found: list[tuple[int, Piece]] = []
        for half in (slice(0, middle), slice(middle, count)):
            found += self._run(topic, part_of(columns, half), principal, deadline)
        return found

    def _call(
        self,
        plugin: str,
        interceptor: Interceptor,
        topic: str,
        columns: Columns,
        principal: Principal,
    ) -> Columns:
        calls = self.calls[plugin]
        calls.calls += 1
        before = self._clock()
        try:
            passed = interceptor.intercept(topic, columns, principal)
        # A LakeMQError is the interceptor's way to refuse records, not a failure of it.
        except (LakeMQError, KeyboardInterrupt):
            raise
        except BaseException as error:  # a plugin's hook that exits must not end the node
            raise self._failed(plugin, calls, topic, error) from error
        finally:
            self._took(plugin, calls, topic, self._clock() - before)
        try:
            _check(columns, passed)
        except Exception as error:
            raise self._failed(plugin, calls, topic, error) from error
        return passed

    def _failed(
        self, plugin: str, calls: Calls, topic: str, error: BaseException
    ) -> InterceptorFailed:
        calls.failures += 1
        text = f"plugin {plugin}: its interceptor failed: {type(error).__name__}: {error}"
        if (now := self._clock()) - calls.failure_told >= LOG_EVERY_S:
            calls.failure_told = now
            _log.error(
                "%s; publishes to topic %s are refused (%d failures so far)",
                text,
                topic,
                calls.failures,
                exc_info=error,
            )
        return InterceptorFailed(text)

    def _took(self, plugin: str, calls: Calls, topic: str, seconds: float) -> None:
        calls.seconds += seconds
        if seconds < SLOW_S:
            return
        calls.slow += 1
        if (now := self._clock()) - calls.slow_told >= LOG_EVERY_S:
            calls.slow_told = now
            _log.warning(
                "plugin %s: its interceptor took %.0f ms for a group of topic %s; the node did "
                "nothing else meanwhile (%d slow calls so far)",
                plugin,
                1000 * seconds,
                topic,
                calls.slow,
            )


def part_of(columns: Columns, half: slice) -> Columns:
    """Some of the records, in a row."""
    values, keys, headers, times = columns
    return Columns(
        values[half],
        None if keys is None else keys[half],
        None if headers is None else headers[half],
        None if times is None else times[half],
    )


def _check(given: Columns, found: Columns) -> None:
    """ValueError or TypeError unless `found` can be stored in place of `given`."""
    if not isinstance(found, Columns):
        raise TypeError(f"it returned {type(found).__name__}, not Columns")
    count = len(given.values)
    for name, before, column in zip(Columns._fields, given, found, strict=True):
        if column is before:
            continue
        if column is None:
            if name == "values":
                raise TypeError("values is None; a record without a value is None in a list")
            continue
        if len(column) != count:
            raise ValueError(f"it returned {len(column)} {name} for {count} records")
        _check_cells(name, column)


def _check_cells(name: str, column: Sequence[object]) -> None:
    allowed = _CELLS[name]
    wrong = set(map(type, column)) - allowed
    if wrong:
        raise TypeError(f"it returned {name} of type {_names(wrong)}; they are {_names(allowed)}")
    if name == "headers":
        # Each once: most records of a group have the same headers.
        for encoded in set(column):
            assert isinstance(encoded, bytes)
            decode_headers(encoded)
    if name == "timestamps_ms" and not all(time in _TIMES for time in column):
        raise ValueError("it returned a timestamp outside 64 bits")


def _names(types: set[type]) -> str:
    return " or ".join(sorted("None" if each is NoneType else each.__name__ for each in types))
