"""Runs works: all sides of one stand at once and take turns, round by round."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.harness.declare import Curve, Growth, Missing, Result, Running, Sample, Side, Work
from benchmarks.harness.processes import rss_mb
from benchmarks.harness.statistics import estimate

WARM_SHARE = 0.3
T = TypeVar("T")
Tell = Callable[[str], None]


def started(
    sides: Sequence[Side], folder: Path, stack: contextlib.ExitStack, missing: dict[str, str]
) -> dict[str, Running]:
    """The sides that could be started; why the others could not is put into `missing`."""
    found = {}
    for side in sides:
        plain = re.sub(r"[^A-Za-z]+", "-", side.name)  # Kafka takes a comma for a list of folders
        home = Path(tempfile.mkdtemp(dir=folder, prefix=f"{plain}-"))
        try:
            found[side.name] = stack.enter_context(side.start(home))
        except Missing as error:
            missing[side.name] = str(error)
    return found


def turns(sides: Sequence[str], number: int) -> list[str]:
    """The order of a round: forwards and backwards in turn, so that none is always first."""
    return list(sides) if number % 2 == 0 else list(reversed(sides))


def measured(
    sides: dict[str, Running], name: str, missing: dict[str, str], take: Callable[[Running], Sample]
) -> Sample | None:
    """A sample with the peak of memory; None: the side failed, which ends its part in this work."""
    side = sides[name]
    try:
        sample = take(side)
    except (RuntimeError, OSError, AssertionError, Missing) as error:
        missing[name] = f"it failed: {error or type(error).__name__}"
        del sides[name]
        return None
    if side.pids:
        sample["rss_mb"] = rss_mb(side.pids)
    return sample


def run_work(work: Work, rounds: int, scale: float, folder: Path, tell: Tell) -> Result:
    """Every side in every round; a first short round that does not count warms all up."""
    result, began = Result(work.name), time.monotonic()
    missing, seconds = result.missing, work.seconds * scale
    with contextlib.ExitStack() as stack:
        sides: dict[str, Running] = {}
        if not work.fresh:
            sides = started(work.sides, folder, stack, missing)
            for name in list(sides):
                measured(
                    sides, name, missing, lambda side: work.measure(side, seconds * WARM_SHARE)
                )
        for number in range(rounds):
            with contextlib.ExitStack() as fresh:
                if work.fresh:
                    able = [side for side in work.sides if side.name not in missing]
                    sides = started(able, folder, fresh, missing)
                for name in turns(list(sides), number):
                    sample = measured(
                        sides, name, missing, lambda side: work.measure(side, seconds)
                    )
                    if sample is not None:
                        result.samples.setdefault(name, []).append(sample)
    result.samples = in_order(work.sides, result.samples)
    result.took_s = time.monotonic() - began
    tell_result(result, tell)
    return result


def in_order(sides: Sequence[Side], found: dict[str, T]) -> dict[str, T]:
    return {side.name: found[side.name] for side in sides if side.name in found}


def tell_result(result: Result, tell: Tell) -> None:
    tell(f"{result.work}  ({result.took_s:.0f} s)")
    for name, samples in result.samples.items():
        medians = {
            key: estimate([each[key] for each in samples if key in each]) for key in samples[0]
        }
        shown = "  ".join(
            f"{key} {each.median:,.4g} ±{each.spread:.0%}" for key, each in medians.items()
        )
        tell(f"    {name:22} {shown}")
    for name, reason in result.missing.items():
        tell(f"    {name:22} does not take part: {reason}")


def run_growth(growth: Growth, scale: float, folder: Path, tell: Tell) -> Curve:
    """Every side at every size, sides in turn, each started anew for it."""
    curve, began = Curve(growth.name), time.monotonic()
    seconds = growth.seconds * scale
    for number, size in enumerate(growth.sizes):
        with contextlib.ExitStack() as stack:
            declared = growth.sides_at(size) if growth.sides_at else growth.sides
            able = [side for side in declared if side.name not in curve.missing]
            sides = started(able, folder, stack, curve.missing)
            for name in turns(list(sides), number):
                sample = measured(
                    sides, name, curve.missing,
                    lambda side, size=size: growth.measure(side, size, seconds),
                )  # fmt: skip
                if sample is not None:
                    curve.points.setdefault(name, []).append((size, sample))
    curve.points = in_order(growth.sides, curve.points)
    curve.took_s = time.monotonic() - began
    tell(f"{curve.growth}  ({curve.took_s:.0f} s)")
    for name, points in curve.points.items():
        for size, sample in points:
            shown = "  ".join(f"{key} {value:,.4g}" for key, value in sample.items())
            tell(f"    {name:22} {size:>9,.0f}  {shown}")
    for name, reason in curve.missing.items():
        tell(f"    {name:22} does not take part: {reason}")
    return curve
