"""Measure LakeMQ beside its peers.

Figures are medians of rounds in which all sides take turns. `run` writes a JSON file into
`benchmarks/history`, the tables and plots of `docs/performance.md`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import reduce
from pathlib import Path

from benchmarks.harness import compare, history, report
from benchmarks.harness.declare import Growth, Work
from benchmarks.harness.runner import WARM_SHARE, run_growth, run_work

ROOT = Path(__file__).parents[1]
KEPT = ("memory_MB:", "descriptors:", "threads:", "files_MB:", "refused")
"""Lines of a soak that stand on the page."""
PAGE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "pictures" / "performance"
HISTORY = ROOT / "benchmarks" / "history"
SCRATCH = ROOT / "build" / "bench"
"""On the disk of the checkout; a temporary folder may lie in memory."""
START_S = 2.0
ROUND_S = 0.8
"""About what a side takes to start, and the generators in each round."""


def wanted(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def chosen(only: Sequence[str], full: bool) -> tuple[list[Work], list[Growth]]:
    """Works and growths whose names match; those of the short run without a pattern."""
    from benchmarks.works import GROWTHS, WORKS

    if not only:
        works = [work for work in WORKS if full or not work.full]
        return works, list(GROWTHS) if full else []
    works = [work for work in WORKS if wanted(work.name, only) or wanted(work.page, only)]
    return works, [growth for growth in GROWTHS if wanted(growth.name, only)]


def about_s(work: Work, rounds: int, scale: float) -> float:
    """Expected time of a work on a quiet machine."""
    each = work.seconds * scale + ROUND_S + START_S * work.fresh
    return len(work.sides) * (START_S + work.seconds * scale * WARM_SHARE + rounds * each)


def listed(arguments: argparse.Namespace) -> int:
    works, growths = chosen(arguments.only or ["*"], True)
    for work in works:
        took = about_s(work, work.rounds, 1)
        sides = ", ".join(side.name for side in work.sides)
        print(
            f"{work.name:20} {'full ' if work.full else '     '}~{took:4.0f} s  {sides}: "
            f"{work.load}"
        )
    for growth in growths:
        print(f"{growth.name:20} full  {growth.load}")
    return 0


def run(arguments: argparse.Namespace) -> int:
    works, growths = chosen(arguments.only, arguments.full)
    if not works and not growths:
        print(f"no work is called {' or '.join(arguments.only)}; `list` tells their names")
        return 2
    began = datetime.now(UTC).isoformat(timespec="seconds")
    done = history.Run(began, history.machine())
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="lakemq-bench-") as name:
        for work in works:
            rounds = arguments.rounds or work.rounds
            result = run_work(work, rounds, arguments.scale, Path(name), tell)
            result.began = began
            done.results[work.name] = result
        for growth in growths:
            done.curves[growth.name] = run_growth(growth, arguments.scale, Path(name), tell)
    arguments.history.mkdir(parents=True, exist_ok=True)
    path = arguments.history / f"{began.replace(':', '').replace('+0000', '')}.json"
    path.write_text(done.dumps())
    tell(f"history: {path}")
    if not arguments.no_page:
        return published(arguments)
    return 0


def tell(text: str) -> None:
    print(text, flush=True)


def publish(folder: Path) -> None:
    """Tables into the page and plots beside it, of the newest run of each work in the history.
    Raises NotHistory."""
    from benchmarks.harness import plots
    from benchmarks.works import GROWTHS, WORKS

    runs = [history.load(path) for path in sorted(folder.glob("*.json"))]
    if not runs:
        raise history.NotHistory(f"{folder} holds no run")
    done = reduce(history.Run.merged, runs)
    PICTURES.mkdir(parents=True, exist_ok=True)
    plots.ratio_bars(WORKS, done.results, PICTURES / "ratios.png")
    for growth in GROWTHS:
        if growth.name in done.curves:
            plots.growth_plot(growth, done.curves[growth.name], PICTURES / f"{growth.name}.png")
    found = report.sections(WORKS, GROWTHS, done, lambda name: f"pictures/performance/{name}.png")
    PAGE.write_text(report.page(PAGE.read_text(), found))
    tell(f"tables: {PAGE}")


def compared(arguments: argparse.Namespace) -> int:
    try:
        print(compare.tell(history.load(arguments.old), history.load(arguments.new)))
    except history.NotHistory as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def published(arguments: argparse.Namespace) -> int:
    try:
        publish(arguments.history)
    except history.NotHistory as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def soaked(arguments: argparse.Namespace) -> int:
    from benchmarks.soak import soak

    said: list[str] = []

    def tell_and_keep(text: str) -> None:
        said.append(text)
        tell(text)

    code = soak(arguments.hours, arguments.trace, arguments.folder, PICTURES, tell_and_keep)
    lines = [f"- {line}" for line in said if line.startswith(KEPT)]
    text = "\n".join(["![soak](pictures/performance/soak.png)\n", *lines])
    PAGE.write_text(report.page(PAGE.read_text(), {"soak": text}))
    return code


def profiled(arguments: argparse.Namespace) -> int:
    from benchmarks.profiled import profile

    return profile(arguments.only, arguments.seconds, arguments.folder, tell)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = found.add_subparsers(required=True)
    one = commands.add_parser("run", help="measure, and write history, tables and plots")
    one.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="works or pages, with * and ?"
    )
    one.add_argument("--full", action="store_true", help="all works, growth plots too")
    one.add_argument("--rounds", type=int, default=0)
    one.add_argument("--scale", type=float, default=1.0, help="of the time of each load")
    one.add_argument("--history", type=Path, default=HISTORY, metavar="FOLDER")
    one.add_argument("--no-page", action="store_true", help="write the history only")
    one.set_defaults(run=run)
    two = commands.add_parser("list", help="works, with what each takes on a quiet machine")
    two.add_argument("only", nargs="*", default=[])
    two.set_defaults(run=listed)
    three = commands.add_parser("compare", help="what changed between two runs beyond noise")
    three.add_argument("old", type=Path)
    three.add_argument("new", type=Path)
    three.set_defaults(run=compared)
    four = commands.add_parser("publish", help="write the page from the runs of the history")
    four.add_argument("--history", type=Path, default=HISTORY, metavar="FOLDER")
    four.set_defaults(run=published)
    five = commands.add_parser(
        "soak", help="mixed load for hours: memory, descriptors, threads, latency"
    )
    five.add_argument("--hours", type=float, default=1.0)
    five.add_argument("--trace", action="store_true", help="tell by tracemalloc what grew (slow)")
    five.set_defaults(run=soaked)
    six = commands.add_parser("profile", help="where the CPU time of a node goes under a work")
    six.add_argument("--only", nargs="+", default=["qos0", "qos1-2000", "qos1-devices"])
    six.add_argument("--seconds", type=float, default=5.0)
    six.set_defaults(run=profiled)
    for each in (one, five, six):
        each.add_argument("--folder", type=Path, default=SCRATCH, help="on the disk to measure")
    return found


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(words)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    code: int = arguments.run(arguments)
    if code == 0 and time.monotonic() - began > 1:
        tell(f"{time.monotonic() - began:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
