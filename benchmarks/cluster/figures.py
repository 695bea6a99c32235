"""What the cases measure, and how it is told."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]  # has no types of its own

VALUE = b"x" * 100
BLOCK = 50_000
CALLERS = 256
RATE = 10_000
"""Records/s of the latency cases."""


@dataclass(frozen=True)
class Figure:
    """What one case took."""

    name: str
    records: int
    elapsed_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.records / self.elapsed_s

    @property
    def cpu_rate(self) -> float:
        return self.records / self.cpu_s


def told(figure: Figure) -> Figure:
    print(
        f"{figure.name:38} {figure.rate:12,.0f} records/s {figure.cpu_rate:12,.0f} per CPU-second",
        flush=True,
    )
    return figure


def cpu_of(*processes: psutil.Process) -> float:
    """User and system time of all of them together (s)."""
    times = [process.cpu_times() for process in processes]
    return float(sum(each.user + each.system for each in times))


async def timed(
    name: str, servers: Sequence[psutil.Process], work: Callable[[], Awaitable[int]]
) -> Figure:
    """`work` answers with the number of records; CPU is that of the servers and of this process."""
    processes = [*servers, psutil.Process()]
    before, began = cpu_of(*processes), time.perf_counter()
    records = await work()
    return told(Figure(name, records, time.perf_counter() - began, cpu_of(*processes) - before))


def percentiles(name: str, took_s: Sequence[float]) -> tuple[float, float]:
    """(p50, p99) in ms, told."""
    ordered = sorted(took_s)
    p50, p99 = (ordered[int(share * len(ordered))] * 1000 for share in (0.5, 0.99))
    print(f"{name:38} p50 {p50:8.1f} ms   p99 {p99:8.1f} ms", flush=True)
    return p50, p99


def outages(name: str, took_s: Sequence[float]) -> float:
    """The median (s), told with the longest."""
    median = statistics.median(took_s)
    print(
        f"{name:38} median {median:6.2f} s   longest {max(took_s):6.2f} s   of {len(took_s)}",
        flush=True,
    )
    return median


def ratio(what: str, part: Figure, whole: Figure) -> None:
    """One figure as a part of another, by time and by CPU time."""
    print(
        f"{what:60} {part.rate / whole.rate:6.2f}   per CPU-second "
        f"{part.cpu_rate / whole.cpu_rate:6.2f}",
        flush=True,
    )
