"""Tables of a run in Markdown, set between marks of a page whose other text is hand-written. Pure.

`<!-- bench: mqtt -->` ... `<!-- end -->` holds the works of that page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.harness.declare import (
    FIGURES,
    GENERATOR_BOUND_PCT,
    Goal,
    Growth,
    Result,
    Sample,
    Work,
)
from benchmarks.harness.history import Run
from benchmarks.harness.statistics import Estimate, estimate, exponent, ratio

MARK = re.compile(r"<!-- bench: (\S+) -->\n.*?<!-- end -->", re.DOTALL)


def page(text: str, sections: Mapping[str, str]) -> str:
    """`text` with the sections between its marks; what has no section now is left as it is."""

    def section(match: re.Match[str]) -> str:
        name = match[1]
        if name not in sections:
            return match[0]
        return f"<!-- bench: {name} -->\n{sections[name].strip()}\n<!-- end -->"

    return MARK.sub(section, text)


def marks(text: str) -> list[str]:
    return [match[1] for match in MARK.finditer(text)]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(each)} |" for each in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines) + "\n"


def number(value: float, digits: int) -> str:
    if value and abs(value) < 0.5 * 10**-digits:
        return f"{value:.1g}"
    return f"{value:,.{digits}f}"


def cell(found: Estimate, digits: int) -> str:
    """The median, and how far the rounds lie around it."""
    spread = found.spread
    return number(found.median, digits) + (f" ± {spread:.0%}" if spread >= 0.005 else "")


def keys_of(result: Result) -> list[str]:
    told = {key for rounds in result.samples.values() for sample in rounds for key in sample}
    return [key for key in FIGURES if key in told]


def values(samples: Sequence[Sample], key: str) -> list[float]:
    return [sample[key] for sample in samples if key in sample]


def work_table(result: Result) -> str:
    """A row for each side; beside LakeMQ's, nothing; beside a peer's, LakeMQ divided by it."""
    keys = keys_of(result)
    ratios = [key for key in keys if FIGURES[key].better]
    sides = list(result.samples)
    rows = []
    for side in sides:
        mine = result.samples[side]
        row = [side]
        for key in keys:
            found = values(mine, key)
            row.append(cell(estimate(found), FIGURES[key].digits) if found else "")
        rows.append([*row, "" if side == sides[0] else beside(result, sides[0], side, ratios)])
    return table(["side", *(FIGURES[key].title for key in keys), f"{sides[0]} to it"], rows)


def beside(result: Result, ours: str, peer: str, keys: Iterable[str]) -> str:
    found = []
    for key in keys:
        share = ratio(values(result.samples[ours], key), values(result.samples[peer], key))
        if share and key in ("rate", "cpu_us", "p99_ms", "cpu_s", "each_kib", "first_s"):
            found.append(f"{FIGURES[key].title.split(',')[0]} {share.median:.2f} x")
    return "; ".join(found)


def reached(result: Result, goal: Goal) -> tuple[float, bool] | None:
    """What a goal is measured by now, and whether it is reached; None: a side is missing."""
    sides = list(result.samples)
    if not sides or (goal.peer is not None and goal.peer not in sides):
        return None
    ours = values(result.samples[sides[0]], goal.figure)
    found: Estimate | None = estimate(ours) if ours else None
    if goal.peer is not None:
        found = ratio(ours, values(result.samples[goal.peer], goal.figure))
    return (found.median, goal.reached(found.median)) if found else None


def goals_line(work: Work, result: Result) -> str:
    told = []
    for goal in work.goals:
        found = reached(result, goal)
        what = (
            "not measured"
            if found is None
            else f"{found[0]:.2f}, {'reached' if found[1] else 'missed'}"
        )
        told.append(f"{goal.text()}: {what}")
    return f"Goals: {'; '.join(told)}.\n" if told else ""


def bound_by_generator(result: Result) -> list[str]:
    """Sides whose figure is that of the load generator."""
    return [
        side
        for side, rounds in result.samples.items()
        if (busy := values(rounds, "generator_pct"))
        and estimate(busy).median >= GENERATOR_BOUND_PCT
    ]


def work_text(work: Work, result: Result, began: str = "") -> str:
    """`began`: of the run whose tables these are; a result of another one tells its own."""
    sides = {side.name: side.settings for side in work.sides}
    parts = [f"### {work.name}\n", f"{work.load}\n"]
    if result.samples:
        parts.append(work_table(result))
        told = "; ".join(f"{name}: {sides[name]}" for name in result.samples if sides.get(name))
        if told:
            parts.append(f"{told}.\n")
    if began not in ("", result.began):
        parts.append(f"Measured {result.began}.\n")
    for side, reason in result.missing.items():
        parts.append(f"{side} did not take part: {reason}.\n")
    busy = bound_by_generator(result)
    if busy:
        parts.append(f"The load generator, not the side, is the bound of {', '.join(busy)}.\n")
    goals = goals_line(work, result)
    return "\n".join([*parts, goals] if goals else parts)


def summary(works: Iterable[Work], run: Run) -> str:
    """One row for each work: LakeMQ to each peer, and its goals."""
    rows = []
    for work in works:
        result = run.results.get(work.name)
        if result is None or not result.samples:
            continue
        ours, *peers = result.samples
        ratios = [
            f"{peer}: {told}" for peer in peers
            if (told := beside(result, ours, peer, ("rate", "cpu_us", "p99_ms", "first_s")))
        ]  # fmt: skip
        found = [reached(result, goal) for goal in work.goals]
        state = ", ".join(
            "not measured" if each is None else "reached" if each[1] else "missed" for each in found
        )
        rows.append([f"[{work.name}](#{work.name})", "<br>".join(ratios), state])
    return table(["work", "LakeMQ to its peers", "goals"], rows)


def growth_text(growth: Growth, run: Run, picture: str) -> str:
    curve = run.curves[growth.name]
    parts = [
        f"### {growth.name}\n",
        f"{growth.load} Expected: {growth.expected}.\n",
        f"![{growth.name}]({picture})\n",
    ]
    rows = []
    for side, points in curve.points.items():
        for key in growth.figures:
            found = [(size, sample[key]) for size, sample in points if key in sample]
            if found:
                grown = exponent(found)
                rows.append([
                    side, FIGURES[key].title,
                    ", ".join(
                        f"{size:,.0f}: {number(value, FIGURES[key].digits)}"
                        for size, value in found
                    ),
                    "" if grown is None else f"x^{grown:.2f}",
                ])  # fmt: skip
    parts.append(table(["side", "figure", f"{growth.x}: value", "grows as"], rows))
    parts += [f"{side} did not take part: {reason}.\n" for side, reason in curve.missing.items()]
    return "\n".join(parts)


def sections(
    works: Sequence[Work], growths: Sequence[Growth], run: Run, picture: Callable[[str], str]
) -> dict[str, str]:
    """Mark -> text: `summary`, `machine`, `growth` and one for each page of the works."""
    facts = ", ".join(f"{key} {value}" for key, value in {**run.machine, **run.versions}.items())
    beside_peers = any(len(each.samples) > 1 for each in run.results.values())
    bars = f"\n![ratios]({picture('ratios')})\n" if beside_peers else ""
    found = {
        "machine": f"Measured {run.began}: {facts}.\n",
        "summary": summary(works, run) + bars,
    }
    for name in dict.fromkeys(work.page for work in works):
        texts = [
            work_text(work, run.results[work.name], run.began)
            for work in works
            if work.page == name and work.name in run.results
        ]
        if texts:
            found[name] = "\n".join(texts)
    grown = [
        growth_text(each, run, picture(each.name)) for each in growths if each.name in run.curves
    ]
    if grown:
        found["growth"] = "\n".join(grown)
    return found
