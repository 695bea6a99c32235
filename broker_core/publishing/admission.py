"""Admits clients' batches: checks sizes, CRCs, timestamps, columns and the schema.

What is cheap is looked at at once, the rest in a thread, in the order of calls (`ordered_checks`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from lakemq.broker_core.api.errors import BatchTooLarge, SchemaMismatch
from lakemq.broker_core.api.records.batch import BatchHeader
from lakemq.broker_core.api.schemas.json_validation import TooManySteps
from lakemq.broker_core.api.state.internal_topics import is_internal
from lakemq.broker_core.api.types import Columns, Principal, TopicInfo
from lakemq.broker_core.publishing.batch_check import (
    age_limit_ms,
    check_columns,
    check_times,
    checked_header,
    is_cheap,
    is_cheap_to_open,
)
from lakemq.broker_core.publishing.batch_columns import columns_of, with_columns
from lakemq.broker_core.publishing.interception import Interception
from lakemq.broker_core.publishing.ordered_checks import OrderedChecks

T = TypeVar("T")
_log = logging.getLogger(__name__)
_WARN_INTERVAL_MS: Final = 10 * 60 * 1000
_WARNED_MAX: Final = 10_000
_FEW_RECORDS: Final = 16
_FEW_BYTES: Final = 4096
_FEW_STEPS: Final = 1000
"""Of one value; one that takes more is compared with its schema in a thread."""
CheckValues = Callable[[TopicInfo, bytes, int | None], None]
Mismatch = tuple[int, SchemaMismatch]
"""Index of a value, and why it does not fit."""


class _Offered(NamedTuple, Generic[T]):
    """What a client wants to have stored."""

    key: Hashable
    topic: TopicInfo
    batch: bytes
    header: BatchHeader
    principal: Principal
    then: Callable[[bytes, BatchHeader], asyncio.Future[T]]


class Admission:
    """Lives on the event loop; `check_values` is also called in threads."""

    def __init__(
        self,
        check_values: CheckValues,
        now_ms: Callable[[], int],
        interception: Interception | None = None,
        checks: OrderedChecks | None = None,
    ) -> None:
        """`interception`: to which clients' batches are shown."""
        self._check_values = check_values
        self._now_ms = now_ms
        self.checks = checks or OrderedChecks()
        self._interception = interception
        self._warn_again_ms: dict[str, int] = {}
        """Topic -> when its old records are warned of again."""
        self._reservations: dict[str, list[frozenset[bytes]]] = {}

    def reserve(self, topic: str, names: Iterable[str]) -> Callable[[], None]:
        """Refuse clients' batches for the topic whose records have headers of these names; returns
        its end."""
        reserved = frozenset(name.encode() for name in names)
        self._reservations.setdefault(topic, []).append(reserved)

        def lift() -> None:
            self._reservations[topic].remove(reserved)

        return lift

    def header(self, topic: TopicInfo, batch: bytes) -> BatchHeader:
        """The header of a batch that is whole outside. BatchTooLarge, CorruptBatch,
        InvalidTimestamp."""
        header = checked_header(topic, batch)
        self.check_times(topic, (header.base_timestamp_ms, header.max_timestamp_ms))
        return header

    def check_times(self, topic: TopicInfo, times_ms: Sequence[int]) -> None:
        """InvalidTimestamp. Records that retention is to delete again are warned of."""
        now_ms = self._now_ms()
        check_times(topic, times_ms, now_ms)
        age_max_ms = age_limit_ms(topic)
        if age_max_ms is None or now_ms - (oldest_ms := min(times_ms)) <= age_max_ms:
            return
        if now_ms >= self._warn_again_ms.get(topic.name, 0):
            if len(self._warn_again_ms) >= _WARNED_MAX:
                # Emptied rather than grown without bound: the worst is that a warning is repeated.
                self._warn_again_ms.clear()
            # Set before the log line, once for each topic: a producer of old records sends many
            # batches.
            self._warn_again_ms[topic.name] = now_ms + _WARN_INTERVAL_MS
            _log.warning(
                "topic %s: records of %d ms ago are appended; with retention_by = record and "
                "retention_ms = %d they are deleted as soon as their segment is sealed",
                topic.name,
                now_ms - oldest_ms,
                age_max_ms,
            )

    def admit(
        self,
        key: Hashable,
        topic: TopicInfo,
        batch: bytes,
        header: BatchHeader,
        principal: Principal,
        then: Callable[[bytes, BatchHeader], asyncio.Future[T]],
    ) -> asyncio.Future[T]:
        """What `then` gives, called once the inside of the batch is right too, and after all calls
        for `key` made before. It gets the batch and header to store, which interceptors may have
        changed. CorruptBatch, SchemaMismatch, InvalidRequest for a reserved record header, and
        what interceptors refuse the batch with, are raised, at once or by the future.
        """
        offered = _Offered(key, topic, batch, header, principal, then)
        interception = self._interception
        if interception is not None and interception.takes_batches and not is_internal(topic.name):
            return self._intercepted(interception, offered)
        return self._admitted(offered)

    def _admitted(self, offered: _Offered[T]) -> asyncio.Future[T]:
        key, topic, batch, header, _, then = offered
        return self.checks.run(key, self._rest(topic, batch, header), lambda: then(batch, header))

    async def check(
        self, topic: TopicInfo, batch: bytes, header: BatchHeader, principal: Principal
    ) -> tuple[bytes, BatchHeader]:
        """The batch and header to store. Raises what `admit` does."""

        def passed(batch: bytes, header: BatchHeader) -> asyncio.Future[tuple[bytes, BatchHeader]]:
            done = asyncio.get_running_loop().create_future()
            done.set_result((batch, header))
            return done

        return await self.admit(object(), topic, batch, header, principal, passed)

    def _intercepted(self, interception: Interception, offered: _Offered[T]) -> asyncio.Future[T]:
        """As `admit`, in two steps: the batch is opened, and made again, in a thread where that
        takes long; interceptors are called on the event loop in between."""
        topic, batch, header = offered.topic, offered.batch, offered.header
        chain = interception.batch_chain(topic.name)
        opened: list[Columns] = []

        def open_it() -> None:
            check_columns(header, batch, self._reserved(topic))
            opened.append(columns_of(batch))

        def show() -> asyncio.Future[T]:
            if not chain:
                return self._admitted(offered)
            columns = opened.pop()
            passed = interception.run_batch(chain, topic.name, columns, offered.principal)
            return self._passed(offered, columns, passed)

        first = open_it if chain else None
        if first is not None and is_cheap_to_open(header):
            open_it()
            first = None
        # Under a key of its own, also where no interceptor takes it: batches keep their order.
        return self.checks.run(("intercept", offered.key), first, show)

    def _passed(self, offered: _Offered[T], columns: Columns, passed: Columns) -> asyncio.Future[T]:
        """`columns` came, `passed` is to be stored."""
        key, topic, batch, header, _, then = offered
        changed = passed != columns
        if changed and passed.timestamps_ms:
            self.check_times(topic, passed.timestamps_ms)
        stored = [(batch, header)]

        def finish(steps_max: int | None = None) -> None:
            if changed:
                other, data = with_columns(header, columns, passed, self._now_ms())
                _check_size(topic, len(data))
                stored[0] = data, other
            if topic.config.schema:
                self._check_values(topic, stored[0][0], steps_max)

        rest: Callable[[], None] | None = finish
        if is_cheap_to_open(header) and (not topic.config.schema or _is_small(header)):
            try:
                finish(_FEW_STEPS)
                rest = None
            except TooManySteps:
                pass
        elif not (changed or topic.config.schema):
            rest = None
        return self.checks.run(key, rest, lambda: then(*stored[0]))

    def _rest(
        self, topic: TopicInfo, batch: bytes, header: BatchHeader
    ) -> Callable[[], None] | None:
        """What is to be looked at in a thread; None: it was cheap, and is done."""
        inside = partial(self._inside, topic, batch, header)
        if not is_cheap(header) or (topic.config.schema and not _is_small(header)):
            return inside
        try:
            # Tried here first: a small batch with a simple schema does not pay for a thread.
            inside(_FEW_STEPS)
        except TooManySteps:
            return inside
        return None

    def publish(
        self,
        topic: TopicInfo,
        values: Sequence[bytes | None],
        check: Callable[[TopicInfo, Sequence[bytes | None], int | None], Iterable[Mismatch]],
        then: Callable[[dict[int, SchemaMismatch]], asyncio.Future[T]],
    ) -> asyncio.Future[T]:
        """What `then` gives for the values that `check` refuses, by index; it is called after all
        calls for the topic made before."""
        refused: dict[int, SchemaMismatch] = {}

        def rest() -> None:
            refused.update(check(topic, values, None))

        slow: Callable[[], None] | None = rest
        size = sum([len(value) for value in values if value])
        if len(values) <= _FEW_RECORDS and size <= _FEW_BYTES:
            try:
                refused.update(check(topic, values, _FEW_STEPS))
                slow = None
            except TooManySteps:
                pass
        return self.checks.run(("publish", topic.topic_id), slow, lambda: then(refused))

    def _reserved(self, topic: TopicInfo) -> frozenset[bytes]:
        return frozenset[bytes]().union(*self._reservations.get(topic.name, ()))

    def _inside(
        self, topic: TopicInfo, batch: bytes, header: BatchHeader, steps_max: int | None = None
    ) -> None:
        check_columns(header, batch, self._reserved(topic))
        if topic.config.schema:
            self._check_values(topic, batch, steps_max)


def _check_size(topic: TopicInfo, size_bytes: int) -> None:
    if size_bytes > (limit := topic.config.batch_max_bytes):
        raise BatchTooLarge(
            f"batch of {size_bytes} bytes as interceptors have made it; topic {topic.name} takes "
            f"{limit}"
        )


def _is_small(header: BatchHeader) -> bool:
    """Whether comparing the values with a schema is quick enough for the event loop."""
    return header.record_count <= _FEW_RECORDS and header.raw_body_bytes <= _FEW_BYTES
