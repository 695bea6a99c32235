"""The audit log: an internal topic of this node's own, a record for each change."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from pydantic_core import from_json

from lakemq.broker_core.api.administration.audit import AUDIT_TOPIC, AuditEntry, Change
from lakemq.broker_core.api.errors import LakeMQError, OutcomeUnknown
from lakemq.broker_core.api.limits.rates import Bucket
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.reader import committed_batches, open_batch
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.types import Principal

_log = logging.getLogger(__name__)
RECORD_MAX_BYTES: Final = 64 * 1024
"""What a change says of itself is left out where it would take more."""
NEWEST_MAX_BYTES: Final = 8 * 1024 * 1024
"""Of entries that are read for one page, as they are stored."""
_DECODED_BYTES: Final = 128 * 1024
"""That are decoded before others have their turn."""
_READ_BYTES: Final = 1024 * 1024
_STRIDE: Final = 100
"""Batches that are read before others have their turn."""
_FAILURES_PER_S: Final = 10
"""Of one caller: who has no rights must not fill the disk with attempts."""
_MAY_BE_DONE: Final = ("done", OutcomeUnknown.code)
_CALLERS_MAX: Final = 1_000
_NOTED: Final = ("request", "before", "after")


class TopicAuditLog:
    """Implements `AuditLog` over the topic `__audit`."""

    def __init__(self, broker: Broker, retention_ms: int | None, now_ms: Callable[[], int]) -> None:
        """`retention_ms`: how long changes are kept; None: for ever."""
        self.lost = 0
        """Changes that could not be kept."""
        self._broker = broker
        self._retention_ms = retention_ms
        self._now_ms = now_ms
        self._topic = StateTopic(broker, AUDIT_TOPIC, compacted=False, now_ms=now_ms)
        self._ready = False
        self._failures: OrderedDict[tuple[str, str], Bucket] = OrderedDict()
        """By caller, the one that failed last at the end."""

    async def note(self, change: Change) -> None:
        """On disk when it returns. Never raises. Of what is refused to one caller, some a second
        are kept."""
        refused = change.outcome not in _MAY_BE_DONE
        if refused and not self._may_keep_failure(change.principal):
            return
        try:
            await self._ensure()
            await self._topic.put(b"", _encoded(change, self._now_ms(), self._broker.node_id))
        except (LakeMQError, ValueError) as error:
            self.lost += 1
            _log.error(
                "not in the audit log: %s of %s by %s: %s",
                change.action, change.resource, who(change.principal), error,
            )  # fmt: skip

    def _may_keep_failure(self, principal: Principal) -> bool:
        caller, now_ms = (principal.kind, principal.name), self._now_ms()
        bucket = self._failures.pop(caller, None) or Bucket(_FAILURES_PER_S, now_ms)
        self._failures[caller] = bucket
        if len(self._failures) > _CALLERS_MAX:
            self._failures.popitem(last=False)
        return bucket.take(now_ms)

    async def _ensure(self) -> None:
        if self._ready:
            return
        await self._topic.ensure()
        info = self._topic.info
        if info is not None and info.config.retention_ms != self._retention_ms:
            await self._broker.alter_topic(AUDIT_TOPIC, config={"retention_ms": self._retention_ms})
        self._ready = True

    async def newest(self, count: int, before_ms: int | None = None) -> Sequence[AuditEntry]:
        """At most `count` entries, and `NEWEST_MAX_BYTES` of them, older than a time (None: of
        all), the newest first."""
        if self._topic.info is None:
            return []
        log = self._topic.log()
        end = log.high_watermark
        if before_ms is not None:
            end = min(end, await log.offset_for_timestamp(before_ms))
        start = max(log.log_start_offset, end - count)
        kept: deque[tuple[int, bytes]] = deque()
        kept_bytes = read = 0
        async for batch in committed_batches(log, AUDIT_TOPIC, 0, start, end, _READ_BYTES):
            opened = open_batch(batch)
            if opened is not None:
                rows = zip(opened.offsets(), opened.values(), strict=True)
                wanted = [(at, value) for at, value in rows if value and start <= at < end]
                kept += wanted
                kept_bytes += sum(len(value) for _, value in wanted)
            while kept_bytes > NEWEST_MAX_BYTES:
                kept_bytes -= len(kept.popleft()[1])
            read += 1
            if read % _STRIDE == 0:
                await asyncio.sleep(0)
        return await _entries(kept)


async def _entries(kept: deque[tuple[int, bytes]]) -> list[AuditEntry]:
    """Of (offset, value), the last one first; those that can't be read are left out."""
    found: list[AuditEntry] = []
    decoded = 0
    while kept:
        offset, value = kept.pop()
        entry = _decoded(offset, value)
        found += [] if entry is None else [entry]
        decoded += len(value)
        if decoded >= _DECODED_BYTES:
            decoded = 0
            await asyncio.sleep(0)
    return found


class NoAuditLog:
    """Of a node that stores no records: changes go to its log."""

    async def note(self, change: Change) -> None:
        """A line of the log."""
        _log.warning(
            "%s of %s by %s from %s: %s", change.action, change.resource, who(change.principal),
            change.context.peer_host, change.outcome,
        )  # fmt: skip

    async def newest(self, count: int, before_ms: int | None = None) -> Sequence[AuditEntry]:
        """None."""
        return []


def who(principal: Principal) -> str:
    """As rules name it."""
    return "anonymous" if principal.kind == "anonymous" else f"{principal.kind}:{principal.name}"


def _encoded(change: Change, at_ms: int, node: str) -> bytes:
    entry: dict[str, object] = {
        "v": 1,
        "at_ms": at_ms,
        "node": node,
        "who": who(change.principal),
        "from": change.context.peer_host,
        "by": change.by,
        "action": change.action,
        "resource": change.resource[:1024],
        "outcome": change.outcome,
        "detail": change.detail[:1024],
        "request": dict(change.request),
        "before": change.before,
        "after": change.after,
    }
    left_out: int | str = 0
    try:
        text = json.dumps(entry, separators=(",", ":"), default=str).encode()
        if len(text) > RECORD_MAX_BYTES:
            left_out = len(text)
        else:
            _read(text)
    except (ValueError, RecursionError):
        # Nested too deep, infinite, half a surrogate pair: what can't be shown must keep neither
        # the change out of the log nor the log from being listed.
        left_out = "it is no JSON"
    if left_out:
        entry.update(dict.fromkeys(_NOTED, None), request={"left_out": left_out})
        text = json.dumps(entry, separators=(",", ":"), default=str).encode()
    return text


def _read(text: bytes) -> Any:
    """As strict as all who are shown it. Raises ValueError."""
    return from_json(text, allow_inf_nan=False)


def _decoded(offset: int, value: bytes) -> AuditEntry | None:
    """None: it can't be read, which is logged."""
    try:
        found = _read(value)
        return AuditEntry(
            int(found["at_ms"]), str(found["node"]), offset, str(found["who"]),
            str(found["from"]), str(found["by"]), str(found["action"]), str(found["resource"]),
            str(found["outcome"]), str(found["detail"]), dict(found["request"]), found["before"],
            found["after"],
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        _log.error("record %d of %s is no entry of the audit log: %s", offset, AUDIT_TOPIC, error)
        return None
