"""What changed between two runs beyond noise. Pure.

A figure changed when no round of one run lies among those of the other, and the medians differ
by more than the rounds of either run differ among themselves and than the figure's least share
(`Figure.noise`): with three rounds, chance alone makes few such changes. Where both runs
have the same peer, the *ratio* to it is judged: another machine or a busy one changes both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.harness.declare import FIGURES, Result, Sample
from benchmarks.harness.history import Run
from benchmarks.harness.statistics import Estimate, estimate, ratio


@dataclass(frozen=True)
class Change:
    work: str
    what: str
    """`cpu_us of LakeMQ`, or `cpu_us, LakeMQ / Mosquitto`."""
    old: Estimate
    new: Estimate
    verdict: str
    """better, worse, or `changed` for a figure that is told and not judged."""

    def line(self) -> str:
        share = self.new.median / self.old.median - 1 if self.old.median else 0.0
        return (
            f"{self.verdict:7} {self.work}: {self.what}: {self.old.median:.4g} -> "
            f"{self.new.median:.4g} ({share:+.0%}; rounds {self.old.low:.4g} to "
            f"{self.old.high:.4g}, then {self.new.low:.4g} to {self.new.high:.4g})"
        )


def beyond_noise(old: Estimate, new: Estimate, least: float) -> bool:
    """Do the rounds not overlap, and the medians differ by more than they and `least` say?"""
    if not old.median:
        return bool(new.median)
    apart = old.high < new.low or new.high < old.low
    difference = abs(new.median - old.median)
    widest = max(old.high - old.low, new.high - new.low)
    return apart and difference > widest and difference > least * abs(old.median)


def values(samples: list[Sample], key: str) -> list[float]:
    return [sample[key] for sample in samples if key in sample]


def judged(work: str, key: str, what: str, old: Estimate, new: Estimate) -> Change | None:
    figure = FIGURES[key]
    if not beyond_noise(old, new, figure.noise):
        return None
    grown = new.median > old.median
    verdict = "better" if grown == (figure.better == "more") else "worse"
    return Change(work, what, old, new, verdict if figure.better else "changed")


def of_work(name: str, old: Result, new: Result) -> Iterator[Change]:
    first = next(iter(new.samples), None)
    if first is None or first not in old.samples:
        return
    peers = [side for side in new.samples if side != first and side in old.samples]
    for key in FIGURES:
        was, now = values(old.samples[first], key), values(new.samples[first], key)
        if not was or not now or key == "generator_pct":
            continue
        ratios = [
            (
                peer,
                ratio(was, values(old.samples[peer], key)),
                ratio(now, values(new.samples[peer], key)),
            )
            for peer in peers
        ]  # fmt: skip
        told = [(peer, before, after) for peer, before, after in ratios if before and after]
        for peer, before, after in told:
            change = judged(name, key, f"{key}, {first} / {peer}", before, after)
            if change:
                yield change
        if not told:
            change = judged(name, key, f"{key} of {first}", estimate(was), estimate(now))
            if change:
                yield change


def changes(old: Run, new: Run) -> list[Change]:
    """Of the works that both runs have, in the order of the new one."""
    return [
        change
        for name, result in new.results.items()
        if name in old.results
        for change in of_work(name, old.results[name], result)
    ]


def tell(old: Run, new: Run) -> str:
    both = [name for name in new.results if name in old.results]
    found = changes(old, new)
    head = f"{old.began} -> {new.began}: {len(both)} works in both"
    alone = sorted(set(old.results) ^ set(new.results))
    lines = [head, *(f"only in one of them: {', '.join(alone)}",) * bool(alone)]
    return "\n".join(
        [*lines, *([each.line() for each in found] or ["nothing changed beyond noise"])]
    )
