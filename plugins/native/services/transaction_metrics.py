"""Metrics of staged batches and transactions: plain numbers, read on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.transactions.types import TransactionCounters


def observe_transactions(meter: Meter, broker: Broker) -> None:
    """Counters and gauges below `lakemq.transactions`."""

    def counted(
        read: Callable[[TransactionCounters], int],
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            yield Observation(read(broker.transactions.counters))

        return observe

    counters: dict[str, Callable[[TransactionCounters], int]] = {
        "staged.batches": lambda counters: counters.staged_batches,
        "staged.bytes": lambda counters: counters.staged_bytes,
        "commits": lambda counters: counters.commits,
        "applied.batches": lambda counters: counters.applied_batches,
        "resumed": lambda counters: counters.resumed,
        "expired": lambda counters: counters.expired,
        "fenced": lambda counters: counters.fenced,
    }
    for name, read in counters.items():
        unit = "By" if name.endswith("bytes") else ""
        meter.create_observable_counter(f"lakemq.transactions.{name}", [counted(read)], unit)
    gauges: dict[str, Callable[[TransactionCounters], int]] = {
        "waiting.bytes": lambda counters: counters.waiting_bytes,
        "applying": lambda counters: counters.applying,
    }
    for name, read in gauges.items():
        unit = "By" if name.endswith("bytes") else ""
        meter.create_observable_gauge(f"lakemq.transactions.{name}", [counted(read)], unit)
    _observe_schedules(meter, broker)


def _observe_schedules(meter: Meter, broker: Broker) -> None:
    """Counters and gauges below `lakemq.schedules`."""

    def read(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            yield Observation(getattr(broker.schedules.counters, name))

        return observe

    for name in ("scheduled", "delivered", "cancelled"):
        meter.create_observable_counter(f"lakemq.schedules.{name}", [read(name)])
    meter.create_observable_gauge("lakemq.schedules.waiting", [read("waiting")])
    meter.create_observable_gauge("lakemq.schedules.waiting.bytes", [read("waiting_bytes")], "By")
    meter.create_observable_gauge("lakemq.schedules.late", [read("late_ms")], "ms")
