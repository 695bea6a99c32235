"""Mixed load for hours, with clients that come and go: what a node keeps, over time.

QoS 1 at a fixed rate with a subscriber, and now and then a crowd of clients that connect, subscribe
with a session, leave without a word, and come back. Every minute: memory, descriptors, threads, CPU
and latency. After the first tenth, which warms up, the growth of memory is told per hour, beside
what the journal's files grew; with `--trace` also which lines of the node hold what grew.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness.declare import Running
from benchmarks.harness.plots import time_plot
from benchmarks.harness.processes import cpu_s, rss_mb
from benchmarks.load import crew
from benchmarks.load.packets import Load, dial, subscribe
from benchmarks.sides.lakemq import compiled_tree, config, raise_file_limit
from tests.support.node.node import NodeProcess

RATE = 400
CROWD = 40
CROWD_EVERY_S = 50.0
NAMES = 8
"""Crowds come under so many sets of names in turn, so that sessions are taken over again."""
SLICE_S = 60.0
TRACE = "LAKEMQ_BENCH_TRACE"
PROGRAM = "from benchmarks.soak import traced; traced()"
LOAD = Load(publishers=20, names=20, qos=1, rate=RATE, subscribers=1, subscribe_qos=1)


class Crowds(threading.Thread):
    """Clients that come and go until `ended`."""

    def __init__(self, port: int, every_s: float) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._every_s = every_s
        self.ended = threading.Event()
        self.refused = 0

    def run(self) -> None:
        number = 0
        while not self.ended.is_set():
            self._crowd(number)
            number += 1
            self.ended.wait(self._every_s)

    def _crowd(self, number: int) -> None:
        socks: list[socket.socket] = []
        for place in range(CROWD):
            try:
                sock = dial(self._port, f"crowd-{number % NAMES}-{place}", clean=place % 2 == 0)
                subscribe(sock, f"crowd/{place}/#", 1)
                socks.append(sock)
            except OSError:
                self.refused += 1
        self.ended.wait(min(5.0, self._every_s / 2))
        for place, sock in enumerate(socks):
            with suppress(OSError):
                if place % 4:
                    sock.sendall(b"\xe0\0")
            sock.close()


def traced() -> None:
    """`lakemq` that tells on SIGUSR2 what its memory holds, by lines, in the file of `TRACE`."""
    import tracemalloc

    from lakemq.cli.main import main as lakemq

    tracemalloc.start()

    def write(_number: int, _frame: object) -> None:
        path = Path(os.environ[TRACE])
        found = tracemalloc.take_snapshot().statistics("lineno")
        lines = (f"{each.size} {each.count} {each.traceback[0]}" for each in found)
        path.with_suffix(".new").write_text("\n".join(lines))
        path.with_suffix(".new").replace(path)

    signal.signal(signal.SIGUSR2, write)
    lakemq()


def held(pid: int, path: Path) -> dict[str, int]:
    """Line -> bytes that a traced node holds now."""
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    rows = (line.split(" ", 2) for line in path.read_text().splitlines())
    return {where: int(size) for size, _, where in rows}


def node_of(folder: Path, trace: bool) -> NodeProcess:
    raise_file_limit()
    tree = compiled_tree()
    if not trace:
        return NodeProcess(folder, config(), cwd=tree)
    wrapper = folder / "python"
    wrapper.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -c "{PROGRAM}" "$@"\n')
    wrapper.chmod(0o755)
    return NodeProcess(
        folder, config(), {TRACE: str(folder / "held")}, python=str(wrapper), cwd=tree
    )


def state(side: Running, folder: Path) -> dict[str, float]:
    (pid,) = side.pids
    files = [path for path in (folder / "data").rglob("*") if path.is_file()]
    return {
        "memory_MB": rss_mb([pid], peak=False),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "files_MB": sum(path.stat().st_size for path in files) / 1e6,
    }


def per_hour(rows: Sequence[dict[str, float]], key: str) -> float:
    """Slope by least squares (units an hour), of what follows the first tenth."""
    used = rows[len(rows) // 10 :]
    if len(used) < 2:
        return 0.0
    xs, ys = [row["minutes"] / 60 for row in used], [row[key] for row in used]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    below = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / below


def soak(
    hours: float, trace: bool, folder: Path | None, pictures: Path, tell: Callable[[str], None]
) -> int:
    """Ends with 1 where clients were refused or messages were lost."""
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(dir=folder) as name, node_of(Path(name), trace) as node:
        side = Running((node.pid,), node.mqtt_port, node.addresses["mqtt"])
        crowds = Crowds(node.mqtt_port, CROWD_EVERY_S)
        crowds.start()
        began, lost, before = time.monotonic(), 0.0, {}
        slice_s = min(SLICE_S, hours * 3600 / 10)
        while (elapsed := time.monotonic() - began) < hours * 3600:
            used = cpu_s(side.pids)
            sample = crew.paced(side, LOAD, slice_s)
            row = {"minutes": (time.monotonic() - began) / 60, **state(side, Path(name))}
            row |= {
                "p99_ms": sample["p99_ms"],
                "CPU_percent": 100 * (cpu_s(side.pids) - used) / slice_s,
            }
            lost += max(0.0, 100 - sample["delivered_pct"])
            rows.append(row)
            tell("  ".join(f"{key} {value:,.4g}" for key, value in row.items()))
            if trace and not before and elapsed > hours * 360:
                before = held(node.pid, Path(name) / "held")
        if trace:
            tell_growth(before, held(node.pid, Path(name) / "held"), tell)
        crowds.ended.set()
        crowds.join(30)
    pictures.mkdir(parents=True, exist_ok=True)
    today = datetime.now(UTC).date().isoformat()
    time_plot(
        f"{RATE} QoS 1 publishes a second, {CROWD} clients every {CROWD_EVERY_S:.0f} s, {today}",
        rows,
        pictures / "soak.png",
    )
    for key in ("memory_MB", "descriptors", "threads", "files_MB"):
        tell(
            f"{key}: {rows[0][key]:,.1f} to {rows[-1][key]:,.1f}; {per_hour(rows, key):+,.2f} an "
            "hour after warm-up"
        )
    tell(f"refused clients: {crowds.refused}; not delivered: {lost:.3f} % of a slice in all")
    return 1 if crowds.refused or lost else 0


def tell_growth(before: dict[str, int], after: dict[str, int], tell: Callable[[str], None]) -> None:
    grown = {where: size - before.get(where, 0) for where, size in after.items()}
    tell(
        f"Python holds {sum(after.values()) / 1e6:.1f} MB, {sum(grown.values()) / 1e3:+,.0f} kB; "
        "by line:"
    )
    for where, size in sorted(grown.items(), key=lambda item: -abs(item[1]))[:20]:
        tell(f"    {size / 1e3:+10,.1f} kB  {where}")
