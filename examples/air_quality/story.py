"""The demo's story, step by step."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.rule import Rule
from rich.text import Text

import lakemq
from examples.air_quality import plot
from examples.air_quality.comparison import compare, disagreements
from examples.air_quality.devices import Fleet, ReplayFailed
from examples.air_quality.node import LAKEMQ, Node, NodeFailed
from examples.air_quality.readings import TOPIC, Figures, Reading, figures, parse
from examples.air_quality.report import side_by_side, verdict
from examples.air_quality.table import AirTable
from examples.air_quality.tail import Tail

DATA: Final = Path(__file__).with_name("AirQualityUCI.csv")
PARTITIONS: Final = 4
_TAIL_MAX_S: Final = 30.0
_WIDTH: Final = 100
CONFIG: Final = f"""\
# A node that is in nobody's way: every listener takes a port that is free.
[meta]
port = 0
raft_port = 0

[cluster]
peer_port = 0

[admin]
port = 0

[plugins.native]
port = 0

[plugins.mqtt]
port = 0

[topics]
partitions = {PARTITIONS}

# What devices publish below air/ is stored in this topic, under the MQTT topic name as key.
[[plugins.mqtt.bindings]]
filter = "{TOPIC}/#"
topic = "{TOPIC}"
"""


class StoryFailed(Exception):
    """A step went wrong; one clear message."""


class Story:
    """One run, in an empty folder."""

    def __init__(self, console: Console, folder: Path, rows: int | None = None) -> None:
        """`rows`: no more than the first of the file; None: all."""
        self._console = console
        self._rows = rows
        self._table = folder / "table"
        self._picture = folder / "week.png"
        self._export_log = folder / "export.log"
        self._steps = 0
        config = folder / "lakemq.toml"
        config.write_text(CONFIG)
        self._node = Node(config, folder / "node", folder / "node.log")

    def tell(self) -> bool:
        """Whether the table agrees with the file."""
        with DATA.open() as lines:
            readings = {sensor: each[: self._rows] for sensor, each in parse(lines).items()}
        try:
            self._stream(readings)
            return self._ask(readings)
        except (NodeFailed, ReplayFailed, lakemq.LakeMQError) as error:
            raise StoryFailed(str(error)) from error

    def _stream(self, readings: Mapping[str, Sequence[Reading]]) -> None:
        """Everything that needs the node, which is stopped behind it."""
        with self._step("Start a node in a fresh folder"):
            self._show(self._node.command)
            self._node.start()
            for name, address in self._node.addresses.items():
                self._console.print(f"  [green]{name:<7}[/] {address}", highlight=False)
        try:
            native = self._node.addresses["native"]
            with self._step("Replay the readings as 13 MQTT devices; read them live"):
                self._replay(readings, native)
            with self._step("Export the topic with Spark into a Delta table"):
                self._export(native)
        finally:
            self._node.stop()

    def _replay(self, readings: Mapping[str, Sequence[Reading]], native: str) -> None:
        """Devices publish, QoS 1, while the SDK follows the topic."""
        total = sum(map(len, readings.values()))
        with _progress(self._console) as progress, Tail(native, TOPIC) as tail:
            devices = progress.add_task("devices: acknowledged", total=total, note="")
            reader = progress.add_task("SDK: seen live", total=total, note="")

            def advance(acknowledged: int) -> None:
                progress.update(devices, completed=acknowledged, note=_rate(progress, devices))
                progress.update(reader, completed=tail.seen, note=tail.latest)

            Fleet(readings, lambda: self._node.addresses["mqtt"], advance).replay()
            deadline = time.monotonic() + _TAIL_MAX_S
            while tail.seen < total and tail.failure is None and time.monotonic() < deadline:
                time.sleep(0.05)
                advance(total)
            advance(total)  # also when the reader caught up between the last report and now
        if tail.failure is not None:
            raise tail.failure
        if tail.seen != total:
            raise StoryFailed(f"the live reader saw {tail.seen:,} of {total:,} readings")

    def _export(self, native: str) -> None:
        command = [LAKEMQ, "export", "--bootstrap", native, "--topic", TOPIC, "--to", "delta",
                   "--path", str(self._table)]  # fmt: skip
        self._show(command)
        with (
            self._console.status("Spark starts, reads and writes ..."),
            self._export_log.open("w") as log,
        ):
            done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
        said = self._export_log.read_text().splitlines()
        if done.returncode != 0:
            raise StoryFailed("\n".join(["lakemq export failed:", *said[-8:]]))
        for line in said:
            self._console.print(f"  {line}", soft_wrap=True, markup=False)

    def _ask(self, readings: Mapping[str, Sequence[Reading]]) -> bool:
        expected = {sensor: figures(each) for sensor, each in readings.items()}
        sent = [reading for each in readings.values() for reading in each]
        with (
            self._step("Ask the table, and compute the same from the CSV file"),
            self._console.status("Spark starts and counts ..."),
            AirTable(self._table) as table,
        ):
            answered = table.figures()
            comparison = compare(sent, table.readings())
            plot.draw(table.series(plot.SENSORS, plot.START, plot.END), self._picture)
            where = f"Delta version {table.version}, {len(table.files)} Parquet files"
        differing = disagreements(expected, answered)
        self._console.print(f"  {where}\n")
        self._console.print(side_by_side(answered, expected, differing))
        count = len(Figures._fields) * len(expected)
        self._console.print(f"\n{verdict(comparison, differing, count)}", soft_wrap=True)
        self._console.print(
            f"A week in a picture: {_short(self._picture)}", soft_wrap=True, markup=False
        )
        return comparison.exact and not differing

    @contextmanager
    def _step(self, title: str) -> Iterator[None]:
        self._steps += 1
        self._console.print()
        heading = Rule(f"[bold]{self._steps}  {title}", align="left", style="dim")
        self._console.print(heading, width=min(_WIDTH, self._console.width))
        began = time.monotonic()
        yield
        self._console.print(f"  [dim]{time.monotonic() - began:.1f} s[/]")

    def _show(self, command: Sequence[str]) -> None:
        """The command as a user would type it here."""
        words = ["lakemq", *(_short(Path(word)) if "/" in word else word for word in command[1:])]
        line = Text.assemble(("  $ ", "dim"), (" ".join(words), "bold"))
        self._console.print(line, soft_wrap=True)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("  {task.description:<21}"),
        BarColumn(bar_width=16),
        TextColumn("{task.completed:>7,.0f} of {task.total:,.0f}"),
        TextColumn("[dim]{task.fields[note]:<17}"),
        console=console,
    )


def _rate(progress: Progress, task: int) -> str:
    elapsed = progress.tasks[task].elapsed
    return f"{progress.tasks[task].completed / elapsed:,.0f}/s" if elapsed else ""


def _short(path: Path) -> str:
    """A path as seen from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
