"""Calls the interceptors of plugins, so that one that fails refuses the records it failed on and
nothing else: whatever it raises is caught, what it returns is checked, and the time that it takes
is counted, because the event loop stands still meanwhile. One that goes on failing, or takes too
long, is not called for a while (`breaker`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Final

from lakemq.broker_core.api.errors import (
    InterceptorFailed,
    InvalidRequest,
    LakeMQError,
    NotAuthorized,
    Unavailable,
)
from lakemq.broker_core.api.ports import BatchInterceptor, Interceptor
from lakemq.broker_core.api.records.headers import decode_headers
from lakemq.broker_core.api.types import Columns, Principal
from lakemq.broker_core.configuration.settings import InterceptorSettings
from lakemq.broker_core.publishing.breaker import Breakers, Quarantine

_log = logging.getLogger(__name__)

SEARCH_S: Final = 0.1
"""How long a refused group is halved to find the records at fault; those that are not separated
by then are refused with them."""
LOG_EVERY_S: Final = 10.0
"""Between two log lines of one kind about one plugin."""
_TOPICS_MAX: Final = 10_000
"""Topics whose `takes_batches` is remembered."""
_CELLS: Final[dict[str, set[type]]] = {
    "values": {bytes, NoneType},
    "keys": {bytes, NoneType},
    "headers": {bytes},
    "timestamps_ms": {int},
}
_TIMES: Final = range(-(1 << 63), 1 << 63)

REFUSALS: Final = (InterceptorFailed, InvalidRequest, NotAuthorized, Unavailable)
"""What a producer of batches may get. Other errors tell it of its numbers or of the partition's
leader, or leave open whether the batch is stored: it would give up."""

Piece = Columns | LakeMQError
"""Records to store in place of what came, or why they are refused."""
Chain = Sequence[tuple[str, Interceptor]]
"""(plugin, interceptor), in the order of calls."""


@dataclass(slots=True)
class Calls:
    """What one plugin's interceptors did since the start."""

    calls: int = 0
    passed: int = 0
    """Calls that gave columns which can be stored."""
    failures: int = 0
    """Calls that raised, or returned what can't be stored."""
    slow: int = 0
    seconds: float = 0.0
    failure_told: float = float("-inf")
    slow_told: float = float("-inf")


class Interception:
    """Interceptors of all plugins, in their order."""

    def __init__(
        self,
        chain: Chain,
        clock: Callable[[], float],
        settings: InterceptorSettings | None = None,
    ) -> None:
        """`clock`: seconds, monotonic."""
        self._clock = clock
        self._at = 0.0
        """What the clock said last: the end of a call is the beginning of the next."""
        self._failed_in_run: dict[str, tuple[int, str]] = {}
        """Plugin that failed in this run -> (calls that passed before it, why)."""
        self._breakers = Breakers(settings or InterceptorSettings())
        self.calls: dict[str, Calls] = {}
        self.use(chain)

    def use(self, chain: Chain, renewed: str = "") -> None:
        """Have other interceptors from the next group on. Numbers of a plugin go on; quarantines of
        the one that is `renewed` end, since they were its old code's."""
        self._chain = tuple(chain)
        # A new one, as it is read from another thread. A batch may still have the old chain.
        new = {plugin: Calls() for plugin, _ in chain if plugin not in self.calls}
        self.calls = {**self.calls, **new}
        self.reconfigure(self._breakers.settings)
        self.resume(renewed)

    def __bool__(self) -> bool:
        return bool(self._chain)

    def reconfigure(self, settings: InterceptorSettings) -> None:
        """Go on with other settings, of this section or of plugins."""
        self._breakers.settings = settings
        self._batch_chains: dict[str, Chain] = {}
        self.takes_batches = any(isinstance(each, BatchInterceptor) for _, each in self._chain)
        """Whether an interceptor may want whole batches."""

    # -- records that arrive one by one

    def run(self, topic: str, columns: Columns, principal: Principal) -> list[tuple[int, Piece]]:
        """(how many records, what becomes of them), in the order of `columns`.

        One pair, as a rule. A group that is refused is tried again by halves, so that records
        that came with the one at fault are stored.
        """
        self._at = self._clock()
        try:
            chain = self._called(self._chain, topic)
        except Unavailable as error:
            return [(len(columns.values), error)]
        pieces = self._run(chain, topic, columns, principal, self._at + SEARCH_S)
        self._count_failures(topic)
        return pieces

    def _run(
        self, chain: Chain, topic: str, columns: Columns, principal: Principal, deadline: float
    ) -> list[tuple[int, Piece]]:
        count = len(columns.values)
        try:
            return [(count, self._pass(chain, topic, columns, principal))]
        except LakeMQError as error:
            # The search has an end, as the event loop stands still meanwhile.
            if count < 2 or self._at >= deadline:
                return [(count, error)]
        middle = count // 2
        found: list[tuple[int, Piece]] = []
        for half in (slice(0, middle), slice(middle, count)):
            found += self._run(chain, topic, part_of(columns, half), principal, deadline)
        return found

    # -- whole batches

    def batch_chain(self, topic: str) -> Chain:
        """The interceptors that take batches of the topic, asked once for each topic. Raises
        InterceptorFailed, Unavailable."""
        chain = self._batch_chains.get(topic)
        if chain is None:
            if len(self._batch_chains) >= _TOPICS_MAX:
                self._batch_chains.clear()
            self._at = self._clock()
            asked = [each for each in self._chain if isinstance(each[1], BatchInterceptor)]
            called = self._called(asked, topic)
            chain = [each for each in called if self._takes(*each, topic)]
            if len(called) == len(asked):
                self._batch_chains[topic] = chain
        return chain

    def _takes(self, plugin: str, interceptor: Interceptor, topic: str) -> bool:
        assert isinstance(interceptor, BatchInterceptor)
        try:
            return bool(interceptor.takes_batches(topic))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # as in `_call`
            failure = self._failure(plugin, topic, error)
            self._count_failures(topic)
            raise failure from error

    def run_batch(
        self, chain: Chain, topic: str, columns: Columns, principal: Principal
    ) -> Columns:
        """What is to be stored in place of a batch's records, as many. It is not halved: its
        producer gets one answer for all. Raises `REFUSALS`."""
        self._at = self._clock()
        chain = self._called(chain, topic)
        try:
            return self._pass(chain, topic, columns, principal)
        except LakeMQError as error:
            if isinstance(error, REFUSALS):
                raise
            raise InvalidRequest(str(error)) from error
        finally:
            self._count_failures(topic)

    # -- calls

    def _pass(self, chain: Chain, topic: str, columns: Columns, principal: Principal) -> Columns:
        for plugin, interceptor in chain:
            columns = self._call(plugin, interceptor, topic, columns, principal)
        return columns

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
        try:
            passed = interceptor.intercept(topic, columns, principal)
        except KeyboardInterrupt:
            raise
        except LakeMQError:  # its way to refuse records, not a failure of it
            self._took(plugin, calls, topic, worked=True)
            raise
        except BaseException as error:  # a plugin's hook that exits must not end the node
            self._took(plugin, calls, topic, worked=False)
            raise self._failure(plugin, topic, error) from error
        unusable = None
        try:
            _check(columns, passed)
        except Exception as error:  # columns may be of types that do anything
            unusable = error
        self._took(plugin, calls, topic, worked=unusable is None)
        if unusable is not None:
            raise self._failure(plugin, topic, unusable) from unusable
        calls.passed += 1
        return passed

    def _failure(self, plugin: str, topic: str, error: BaseException) -> InterceptorFailed:
        calls = self.calls[plugin]
        calls.failures += 1
        reason = f"{type(error).__name__}: {error}"
        self._failed_in_run.setdefault(plugin, (calls.passed, reason))
        text = f"plugin {plugin}: its interceptor failed: {reason}"
        if self._at - calls.failure_told >= LOG_EVERY_S:
            calls.failure_told = self._at
            _log.error(
                "%s; records for topic %s are refused (%d failures so far)",
                text,
                topic,
                calls.failures,
                exc_info=error,
            )
        return InterceptorFailed(text)

    def _took(self, plugin: str, calls: Calls, topic: str, *, worked: bool) -> None:
        """A call has ended."""
        before, self._at = self._at, self._clock()
        seconds = self._at - before
        calls.seconds += seconds
        if 1000 * seconds < self._breakers.settings.budget_ms:
            if worked and self._breakers:
                self._told_back(self._breakers.worked(plugin, topic))
            return
        calls.slow += 1
        if self._at - calls.slow_told >= LOG_EVERY_S:
            calls.slow_told = self._at
            _log.warning(
                "plugin %s: its interceptor took %.0f ms for a group of topic %s; the node did "
                "nothing else meanwhile (%d slow calls so far)",
                plugin,
                1000 * seconds,
                topic,
                calls.slow,
            )
        self._told(self._breakers.overran(plugin, self._at, seconds))

    # -- quarantine

    def _called(self, chain: Chain, topic: str) -> Chain:
        """Those that may be called now. Raises Unavailable: one may not, and records are not
        stored without it."""
        if not self._breakers:
            return chain
        called = []
        for plugin, interceptor in chain:
            found = self._breakers.blocked(plugin, topic, self._at)
            if found is None:
                called.append((plugin, interceptor))
            elif not self.is_open(plugin):
                raise Unavailable(f"plugin {plugin}: {found}; try again later")
        return called

    def is_open(self, plugin: str) -> bool:
        """Whether records are stored without it while it is quarantined."""
        return plugin in self._breakers.settings.fail_open

    def _count_failures(self, topic: str) -> None:
        """A group of which nothing passed a plugin that failed counts against it, once."""
        if not self._failed_in_run:
            return
        for plugin, (passed, reason) in self._failed_in_run.items():
            if self.calls[plugin].passed == passed:
                self._told(self._breakers.failed(plugin, topic, self._at, reason))
        self._failed_in_run.clear()

    def _told(self, begun: Quarantine | None) -> None:
        if begun is not None:
            becomes = "stored unseen by it" if self.is_open(begun.plugin) else "refused"
            _log.error(
                "plugin %s: %s; records are %s meanwhile, and it is tried again after %d ms",
                begun.plugin,
                begun,
                becomes,
                self._breakers.settings.cool_down_ms,
            )

    def _told_back(self, ended: Sequence[Quarantine]) -> None:
        for each in ended:
            _log.warning("plugin %s: it is called again; before, %s", each.plugin, each)

    def wait_s(self, quarantine: Quarantine) -> float:
        """Until it is tried again; 0: with the next records."""
        return max(0.0, quarantine.until_s - self._clock())

    def quarantines(self) -> Mapping[str, Sequence[Quarantine]]:
        """Of each plugin that has interceptors. May be asked for in another thread."""
        return {plugin: self._breakers.quarantines(plugin) for plugin in self.calls}

    def begun(self, plugin: str) -> int:
        """Quarantines of a plugin since the start."""
        return self._breakers.begun.get(plugin, 0)

    def resume(self, plugin: str) -> Sequence[Quarantine]:
        """End the quarantines of a plugin now; those that there were."""
        ended = self._breakers.resume(plugin)
        self._told_back(ended)
        return ended


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
