"""Sets of offsets as runs of neighbours: small where offsets are dense, as they nearly always are.

A run is [start, end). A list of runs is *normal* when it is sorted and its runs neither touch nor
overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Run(NamedTuple):
    """Offsets [start, end)."""

    start: int
    end: int


def runs_of(offsets: npt.NDArray[np.int64]) -> list[Run]:
    """Runs of neighbours in an array, in its order; not normal unless the array is ascending."""
    if not len(offsets):
        return []
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    starts = np.concatenate(([0], breaks))
    ends = np.concatenate((breaks, [len(offsets)]))
    first, length = offsets[starts].tolist(), (ends - starts).tolist()
    return [Run(start, start + size) for start, size in zip(first, length, strict=True)]


def merge(runs: Iterable[Run]) -> tuple[list[Run], list[Run]]:
    """Any runs -> (normal list of all offsets, normal list of those that are there twice)."""
    merged: list[Run] = []
    twice: list[Run] = []
    for run in sorted(runs):
        if merged and run.start <= merged[-1].end:
            last = merged[-1]
            if run.start < last.end:
                # Only the overlap is twice; runs that just touch are neighbours.
                _add(twice, Run(run.start, min(run.end, last.end)))
            merged[-1] = Run(last.start, max(last.end, run.end))
        else:
            merged.append(run)
    return merged, twice


def _add(runs: list[Run], run: Run) -> None:
    """Append to a list that is normal but may overlap its last run."""
    if runs and run.start <= runs[-1].end:
        runs[-1] = Run(runs[-1].start, max(runs[-1].end, run.end))
    else:
        runs.append(run)


def subtract(runs: Sequence[Run], others: Sequence[Run]) -> list[Run]:
    """Offsets of `runs` that are not in `others`; both normal, so is the result."""
    left: list[Run] = []
    index = 0
    for start, end in runs:
        while index < len(others) and others[index].end <= start:
            index += 1
        at = index
        while start < end and at < len(others) and others[at].start < end:
            if others[at].start > start:
                left.append(Run(start, others[at].start))
            start = others[at].end
            at += 1
        if start < end:
            left.append(Run(start, end))
    return left


def outside(offsets: npt.NDArray[np.int64], runs: Sequence[Run]) -> npt.NDArray[np.bool_]:
    """For each offset, whether it is in none of the runs (normal)."""
    if not runs:
        return np.ones(len(offsets), dtype=bool)
    # Runs are normal, so the only one that can hold an offset is the last that starts at or below
    # it.
    starts = np.array([run.start for run in runs], dtype=np.int64)
    ends = np.array([run.end for run in runs], dtype=np.int64)
    index = np.searchsorted(starts, offsets, side="right") - 1
    return (index < 0) | (offsets >= ends[np.maximum(index, 0)])


def clip(runs: Iterable[Run], start: int, end: int) -> list[Run]:
    """The part of the runs in [start, end)."""
    cut = (Run(max(start, run.start), min(end, run.end)) for run in runs)
    return [run for run in cut if run.start < run.end]


def size(runs: Iterable[Run]) -> int:
    """Number of offsets, each run counted."""
    return sum(run.end - run.start for run in runs)


def describe(runs: Sequence[Run], most: int = 20) -> str:
    """`17, 40 to 41`; at most `most` runs are named."""
    named = [
        str(run.start) if run.end - run.start == 1 else f"{run.start} to {run.end - 1}"
        for run in runs[:most]
    ]
    more = len(runs) - most
    return ", ".join(named) + (f" and {more:,} more ranges" if more > 0 else "")
