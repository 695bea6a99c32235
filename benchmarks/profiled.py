"""Where the CPU time of a node goes under a work's load: the hottest functions, and its threads."""

from __future__ import annotations

import cProfile
import os
import pstats
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from benchmarks.harness.declare import Running
from benchmarks.sides.lakemq import config, raise_file_limit
from tests.support.node.node import NodeProcess

LINES = 25
WRITTEN_S = 30.0
OUT = "LAKEMQ_BENCH_PROFILE"
PROGRAM = "from benchmarks.profiled import main; main()"


def main() -> None:
    """`lakemq` whose main thread is profiled from SIGUSR1 to SIGUSR2, which writes the figures."""
    from lakemq.cli.main import main as lakemq

    profiler = cProfile.Profile()

    def write(_number: int, _frame: object) -> None:
        profiler.disable()
        path = Path(os.environ[OUT])
        profiler.dump_stats(path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    signal.signal(signal.SIGUSR1, lambda _number, _frame: profiler.enable())
    signal.signal(signal.SIGUSR2, write)
    lakemq()


@contextmanager
def node(folder: Path, out: Path):  # type: ignore[no-untyped-def]
    """A node whose interpreter runs `main` in place of `-m lakemq`."""
    wrapper = folder / "python"
    wrapper.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -c "{PROGRAM}" "$@"\n')
    wrapper.chmod(0o755)
    raise_file_limit()
    started = NodeProcess(folder, config(), {OUT: str(out)}, python=str(wrapper))
    with started:
        yield started


def threads(pid: int) -> dict[str, float]:
    """CPU time so far (s): of the event loop's thread, and of the others together."""
    found: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        name = "event loop" if task.name == str(pid) else "other threads"
        used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        found[name] = found.get(name, 0.0) + used
    return found


def wait_for_file(path: Path) -> None:
    deadline = time.monotonic() + WRITTEN_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def profile(
    only: Sequence[str], seconds: float, folder: Path | None, tell: Callable[[str], None]
) -> int:
    """For each MQTT work of `only`: figures under the profiler, threads, functions by own time."""
    from benchmarks.works.mqtt import WORKS

    chosen = [work for work in WORKS if work.name in only]
    if not chosen:
        tell(f"no MQTT work is called {' or '.join(only)}; `list` tells their names")
        return 2
    for work in chosen:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            out = Path(name) / "profile"
            with node(Path(name), out) as started:
                side = Running((started.pid,), started.mqtt_port, started.addresses["mqtt"])
                work.measure(side, min(1.0, seconds))
                before = threads(started.pid)
                os.kill(started.pid, signal.SIGUSR1)
                sample = work.measure(side, seconds)
                os.kill(started.pid, signal.SIGUSR2)
                used = {
                    key: value - before.get(key, 0.0) for key, value in threads(started.pid).items()
                }
                wait_for_file(out)
            tell(f"\n{work.name}: {work.load}")
            tell("  ".join(f"{key} {value:,.4g}" for key, value in sample.items()))
            busy = sorted(used.items(), key=lambda item: -item[1])
            tell(
                "CPU s of threads: "
                + ", ".join(f"{key} {value:.2f}" for key, value in busy if value >= 0.01)
            )
            text = StringIO()
            pstats.Stats(str(out), stream=text).strip_dirs().sort_stats("tottime").print_stats(
                LINES
            )
            tell(text.getvalue().strip())
    return 0
