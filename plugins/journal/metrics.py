"""The journal's metrics: plain numbers, read on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

if TYPE_CHECKING:
    from lakemq.plugins.journal.storage import JournalStorage

_COUNTERS: Final = (
    ("appended_records", "{record}", "Records that became durable."),
    ("appended_bytes", "By", "Bytes of record batches that became durable."),
    ("flushes", "{flush}", "Flushes: one write and one fsync of one partition each."),
    ("failed_flushes", "{flush}", "Flushes that did not write everything."),
    ("refused_appends", "{append}", "Appends refused before they were written."),
    ("duplicates", "{append}", "Appends of idempotent producers that were there already."),
    ("tail_reads", "{fetch}", "Fetches answered from memory."),
    ("disk_reads", "{fetch}", "Fetches answered from files."),
    ("read_bytes", "By", "Bytes of record batches fetched."),
    ("scrubbed_bytes", "By", "Bytes of sealed segments read in search of damage."),
    ("damages_found", "{segment}", "Segments found damaged, by the scrub or by readers."),
    ("repaired_segments", "{segment}", "Segments put together again from another replica."),
)


def register_metrics(meter: Meter, storage: JournalStorage) -> None:
    """Hand the meter what it may read; nothing is counted for its sake."""
    for name, unit, description in _COUNTERS:
        meter.create_observable_counter(
            f"lakemq.journal.{name}",
            [_callback(lambda name=name: getattr(storage.counters, name))],  # type: ignore[misc]
            unit,
            description,
        )
    meter.create_observable_counter(
        "lakemq.journal.flush_time",
        [_callback(storage.flush_seconds)],
        "s",
        "Time that flush threads spent writing and syncing, added up.",
    )
    for name, unit, read, description in (
        ("unflushed_bytes", "By", storage.unflushed_bytes, "Appended bytes not yet durable."),
        ("partitions", "{partition}", storage.open_partitions, "Open partition logs."),
        (
            "fenced_partitions",
            "{partition}",
            storage.fenced_partitions,
            "Logs that take no appends.",
        ),
        (
            "damaged_segments",
            "{segment}",
            storage.damaged_segments,
            "Segments known to be damaged now.",
        ),
        ("size_bytes", "By", storage.size_bytes, "Bytes of record batches on this disk."),
    ):
        meter.create_observable_gauge(
            f"lakemq.journal.{name}", [_callback(read)], unit, description
        )


def _callback(read: Callable[[], float]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(read())]

    return observe
