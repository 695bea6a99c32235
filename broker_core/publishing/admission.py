"""Admits clients' batches: checks sizes, CRCs, timestamps, columns and the schema.

What is cheap is looked at at once, the rest in a thread, in the order of calls (`ordered_checks`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from lakemq.broker_core.api.errors import SchemaMismatch
from lakemq.broker_core.api.records.batch import BatchHeader
from lakemq.broker_core.api.schemas.json_validation import TooManySteps
from lakemq.broker_core.api.types import TopicInfo
from lakemq.broker_core.publishing.batch_check import (
    age_limit_ms,
    check_columns,
    check_times,
    checked_header,
    is_cheap,
)
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


class Admission:
    """Lives on the event loop; `check_values` is also called in threads."""

    def __init__(
        self,
        check_values: CheckValues,
        now_ms: Callable[[], int],
        checks: OrderedChecks | None = None,
    ) -> None:
        self._check_values = check_values
        self._now_ms = now_ms
        self.checks = checks or OrderedChecks()
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
        then: Callable[[], asyncio.Future[T]],
    ) -> asyncio.Future[T]:
        """What `then` gives, called once the inside of the batch is right too, and after all calls
        for `key` made before. CorruptBatch, SchemaMismatch, and InvalidRequest for a reserved
        record header, are raised, at once or by the future.
        """
        return self.checks.run(key, self._rest(topic, batch, header), then)

    async def check(self, topic: TopicInfo, batch: bytes, header: BatchHeader) -> None:
        """The inside of the batch is right, too. CorruptBatch, SchemaMismatch."""

        def passed() -> asyncio.Future[None]:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done

        await self.admit(object(), topic, batch, header, passed)

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

    def _inside(
        self, topic: TopicInfo, batch: bytes, header: BatchHeader, steps_max: int | None = None
    ) -> None:
        reserved = frozenset[bytes]().union(*self._reservations.get(topic.name, ()))
        check_columns(header, batch, reserved)
        if topic.config.schema:
            self._check_values(topic, batch, steps_max)


def _is_small(header: BatchHeader) -> bool:
    """Whether comparing the values with a schema is quick enough for the event loop."""
    return header.record_count <= _FEW_RECORDS and header.raw_body_bytes <= _FEW_BYTES
