"""Metrics of staged batches, transactions and scheduled records: plain numbers, read on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.transactions.types import TransactionCounters

Read = Callable[[TransactionCounters], int]

_COUNTERS: Final[dict[str, tuple[Read, str, str]]] = {
    "staged.batches": (lambda has: has.staged_batches, "{batch}", "Batches staged."),
    "staged.bytes": (lambda has: has.staged_bytes, "By", "Bytes staged."),
    "commits": (lambda has: has.commits, "{transaction}", "Decisions to commit."),
    "applied.batches": (
        lambda has: has.applied_batches, "{batch}", "Staged batches appended to their topics."
    ),
    "resumed": (
        lambda has: has.resumed, "{transaction}", "Committed ones taken up again after a start."
    ),
    "expired": (lambda has: has.expired, "{transaction}", "Aborted because their time was over."),
    "fenced": (
        lambda has: has.fenced, "{transaction}", "Ended by a newer producer of the same name."
    ),
}  # fmt: skip
_GAUGES: Final[dict[str, tuple[Read, str, str]]] = {
    "waiting.bytes": (
        lambda has: has.waiting_bytes, "By", "Bytes staged by transactions not yet decided."
    ),
    "applying": (
        lambda has: has.applying, "{transaction}", "Committed ones whose batches are appended now."
    ),
}  # fmt: skip


def observe_transactions(meter: Meter, broker: Broker) -> None:
    """Counters and gauges below `lakemq.transactions` and `lakemq.schedules`."""

    def counted(read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(read(broker.transactions.counters))]

    for name, (read, unit, description) in _COUNTERS.items():
        meter.create_observable_counter(
            f"lakemq.transactions.{name}", [counted(read)], unit, description
        )
    for name, (read, unit, description) in _GAUGES.items():
        meter.create_observable_gauge(
            f"lakemq.transactions.{name}", [counted(read)], unit, description
        )
    _observe_schedules(meter, broker)


def _observe_schedules(meter: Meter, broker: Broker) -> None:
    def read(field: str, scale: float = 1) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(getattr(broker.schedules.counters, field) * scale)]

    for name, description in (
        ("scheduled", "Records that were given a later time."),
        ("delivered", "Records appended when their time came."),
        ("cancelled", "Records that will not be appended."),
    ):
        meter.create_observable_counter(
            f"lakemq.schedules.{name}", [read(name)], "{record}", description
        )
    for name, callback, unit, description in (
        ("waiting", read("waiting"), "{record}", "Records that wait for their time."),
        ("waiting.bytes", read("waiting_bytes"), "By", "Bytes of records that wait."),
        ("late", read("late_ms", 1 / 1000), "s", "How late the last delivery was."),
    ):
        meter.create_observable_gauge(f"lakemq.schedules.{name}", [callback], unit, description)
