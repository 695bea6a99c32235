"""What a work is: its load, its sides, what an acknowledgement means, the figures and their goals.

Pure: no process is started here. A *sample* is what one side did in one round, a *result* all
samples of a work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

Sample = dict[str, float]
Better = Literal["more", "less"]


@dataclass(frozen=True)
class Figure:
    """How a column of the tables is headed and judged."""

    title: str
    better: Better | None
    """None: told, not judged."""
    digits: int = 0
    noise: float = 0.05
    """Differences below this share are never called a change (10 % of a p99 say nothing)."""


FIGURES: Final[Mapping[str, Figure]] = {
    "rate": Figure("a second", "more"),
    "cpu_us": Figure("CPU, us each", "less", 2),
    "p50_ms": Figure("p50, ms", "less", 2, 0.10),
    "p99_ms": Figure("p99, ms", "less", 2, 0.25),
    "p999_ms": Figure("p99.9, ms", None, 2),
    "first_s": Figure("first, s", "less", 2, 0.10),
    "cpu_s": Figure("CPU, s", "less", 2),
    "each_kib": Figure("KiB each", "less", 1),
    "delivered_pct": Figure("delivered, %", None, 1),
    "rss_mb": Figure("peak memory, MB", "less", 0, 0.10),
    "generator_pct": Figure("generator, %", None),
}
"""Key of a sample -> its column, in the order of the tables. `cpu_us` is CPU time of the side's
processes for each of what `rate` counts; `generator_pct` the share of a core that the busiest
process of the load generator took: near 100 the figure is the generator's, not the side's."""
GENERATOR_BOUND_PCT: Final = 90


class Missing(Exception):
    """A side can't take part; the text says what is missing and how it is had."""


@dataclass
class Running:
    """A side that has been started."""

    pids: Sequence[int] = ()
    """Its processes, whose children count too: CPU time and memory are read from them."""
    port: int = 0
    """Of the protocol that the work speaks."""
    address: str = ""
    ask: Callable[..., Sample] | None = None
    """Of a side that measures itself in a process of its own: arguments -> a sample."""


@dataclass(frozen=True)
class Side:
    """`start(folder)` raises Missing where it can't."""

    name: str
    settings: str
    """What differs from its defaults, and what an acknowledgement means."""
    start: Callable[[Path], AbstractContextManager[Running]]


@dataclass(frozen=True)
class Goal:
    """`figure` of LakeMQ, divided by that of `peer` where one is named, is to reach `bound`."""

    figure: str
    bound: float
    peer: str | None = None

    def text(self) -> str:
        sign = ">=" if FIGURES[self.figure].better == "more" else "<="
        title = FIGURES[self.figure].title
        return f"{title} {sign} {self.bound:g}" + (f" x {self.peer}" if self.peer else "")

    def reached(self, value: float) -> bool:
        return value >= self.bound if FIGURES[self.figure].better == "more" else value <= self.bound


@dataclass(frozen=True)
class Work:
    """One load, the same for each side. `measure(side, seconds)` runs it for about so long."""

    name: str
    page: str
    """Chapter of the report."""
    load: str
    sides: Sequence[Side]
    """The first is LakeMQ; ratios are its figures divided by those of the others."""
    measure: Callable[[Running, float], Sample]
    goals: Sequence[Goal] = ()
    seconds: float = 3.0
    """Of load, in each round and for each side."""
    rounds: int = 3
    full: bool = False
    """Only in `make bench-full`."""
    fresh: bool = False
    """Each round starts its sides anew, for a load that changes what they hold."""


@dataclass(frozen=True)
class Growth:
    """One load at growing sizes; the report draws `figure` over `sizes` and tells its growth."""

    name: str
    load: str
    x: str
    sizes: Sequence[float]
    figures: Sequence[str]
    expected: str
    """How the figures are expected to grow with x, as O(...)."""
    sides: Sequence[Side]
    measure: Callable[[Running, float, float], Sample]
    """(side, size, seconds) -> sample."""
    seconds: float = 2.0
    sides_at: Callable[[float], Sequence[Side]] | None = None
    """The same sides for a size that is a setting of theirs."""


@dataclass
class Result:
    """All samples of a work: side -> one of each round, in order; sides that are missing -> why."""

    work: str
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    took_s: float = 0.0
    began: str = ""
    """UTC, ISO 8601: of the run that measured it."""


@dataclass
class Curve:
    """What a `Growth` gave: side -> (size, sample) in order."""

    growth: str
    points: dict[str, list[tuple[float, Sample]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    took_s: float = 0.0
    began: str = ""
    """UTC, ISO 8601: of the run that measured it."""
