"""The demo's story, step by step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.rule import Rule

import lakemq
from examples.air_quality.devices import Fleet, ReplayFailed
from examples.air_quality.readings import TOPIC, Reading, parse
from examples.cluster.count import Count, Stored, count
from lakemq.local_cluster.cluster import LocalCluster
from lakemq.local_cluster.process import NodeFailed

DATA: Final = Path(__file__).parents[1] / "air_quality" / "AirQualityUCI.csv"
PARTITIONS: Final = 6
REPLICAS: Final = 3
MIN_IN_SYNC: Final = 2
KILLED_AT: Final = 0.4
"""Part of the readings that is acknowledged when a node is killed."""
STARTED_AT: Final = 0.8
"""The same, when it is started again."""
_IN_SYNC_MAX_S: Final = 60.0
_WIDTH: Final = 100
CONFIG: Final = f"""
[topics]
partitions = {PARTITIONS}
replication = {REPLICAS}
min_in_sync = {MIN_IN_SYNC}

# What devices publish below air/ is stored in this topic, under the MQTT topic name as key.
[[plugins.mqtt.bindings]]
filter = "{TOPIC}/#"
topic = "{TOPIC}"
"""


class StoryFailed(Exception):
    """A step went wrong; one clear message."""


class Story:
    """One run, in an empty folder."""

    def __init__(self, console: Console, folder: Path, nodes: int, rows: int | None = None) -> None:
        """`rows`: no more than the first of the file; None: all."""
        self._console = console
        self._rows = rows
        self._cluster = LocalCluster(folder, nodes, config=CONFIG, links=False)
        self._steps = 0
        self._victim = ""
        self._acked_s = 0.0
        self._gap_s = 0.0
        """Longest time between two acks since the kill."""
        self._under_way: list[Reading] = []
        self._addresses = itertools.cycle(self._cluster.names)

    def tell(self) -> bool:
        """Whether every reading that was acknowledged is stored."""
        with DATA.open() as lines:
            readings = {sensor: each[: self._rows] for sensor, each in parse(lines).items()}
        try:
            return self._run(readings)
        except (NodeFailed, ReplayFailed, lakemq.LakeMQError) as error:
            raise StoryFailed(str(error)) from error
        finally:
            self._cluster.stop()

    def _run(self, readings: Mapping[str, Sequence[Reading]]) -> bool:
        cluster = self._cluster
        with self._step(f"Start {len(cluster.names)} nodes"):
            cluster.start()
            for name, node in cluster.nodes.items():
                mqtt, native = node.addresses["mqtt"], node.addresses["native"]
                self._say(f"[green]{name}[/]  mqtt {mqtt}  native {native}  process {node.pid}")
        with lakemq.connect(cluster.bootstrap, timeout_s=60) as client:
            with self._step("Each record of the topic is kept by three nodes"):
                self._until_in_sync(client)
            with self._step("13 MQTT devices publish to any node; one node is killed meanwhile"):
                fleet = self._replay(client, readings)
            with self._step("Wait until all replicas are in sync again"):
                self._until_in_sync(client)
            with self._step("Count what is stored, record by record"):
                stored = (Stored(each.key, each.value) for each in client.consume(TOPIC))
                counted = count(fleet.acknowledged(), self._under_way, stored)
        return self._judge(counted)

    # -- the devices

    def _replay(
        self, client: lakemq.SyncClient, readings: Mapping[str, Sequence[Reading]]
    ) -> Fleet:
        total = sum(map(len, readings.values()))
        with _progress(self._console) as progress:
            task = progress.add_task("acknowledged", total=total)

            def advance(acknowledged: int) -> None:
                progress.update(task, completed=acknowledged)
                if not self._victim and acknowledged >= KILLED_AT * total:
                    self._kill_a_leader(client, fleet)
                now_s = time.monotonic()
                if self._victim:
                    self._gap_s = max(self._gap_s, now_s - self._acked_s)
                self._acked_s = now_s
                if self._victim not in self._cluster.running and acknowledged >= STARTED_AT * total:
                    self._cluster.nodes[self._victim].launch()

            fleet = Fleet(readings, self._mqtt_address, advance)
            fleet.replay()
            advance(total)
        self._say(f"longest time without an ack since then: {self._gap_s:.2f} s")
        self._cluster.nodes[self._victim].wait_ready()
        return fleet

    def _mqtt_address(self) -> str:
        """Of the next node that runs: a device that loses its node goes to another one."""
        running = self._cluster.running
        return self._cluster.address(
            next(name for name in self._addresses if name in running), "mqtt"
        )

    def _kill_a_leader(self, client: lakemq.SyncClient, fleet: Fleet) -> None:
        self._victim = client.describe_topic(TOPIC).partitions[0].leader
        node = self._cluster.nodes[self._victim]
        self._say(f"[bold red]kill -9 {node.pid}[/]  ({self._victim}, which leads partition 0)")
        self._under_way = fleet.in_flight()
        self._cluster.kill(self._victim)
        self._acked_s = time.monotonic()

    # -- the end

    def _until_in_sync(self, client: lakemq.SyncClient) -> None:
        deadline = time.monotonic() + _IN_SYNC_MAX_S
        while True:
            partitions = client.describe_topic(TOPIC).partitions
            if all(len(each.in_sync) == REPLICAS for each in partitions):
                break
            if time.monotonic() > deadline:
                raise StoryFailed(f"not all replicas were in sync after {_IN_SYNC_MAX_S:.0f} s")
            time.sleep(0.1)
        for each in partitions:
            self._say(
                f"partition {each.partition}  leader [green]{each.leader}[/] in epoch "
                f"{each.leader_epoch}  in sync {', '.join(each.in_sync)}"
            )

    def _judge(self, counted: Count) -> bool:
        self._say(f"acknowledged  {counted.acknowledged:>8,}")
        self._say(f"stored        {counted.stored:>8,}")
        self._say(f"lost          {counted.lost:>8,}")
        again = f"{counted.sent_again:,} of them under way when {self._victim} was killed"
        self._say(f"stored twice  {counted.twice:>8,}  [dim]{again}[/]")
        if counted.unknown:
            self._say(f"never sent    {counted.unknown:>8,}")
        if counted.whole:
            self._console.print(
                f"\n[bold green]✓[/] every one of {counted.acknowledged:,} acknowledged readings "
                f"is stored, though {self._victim} was killed"
            )
        else:
            self._console.print("\n[bold red]✗[/] the count does not agree")
        return counted.whole

    # -- the terminal

    @contextmanager
    def _step(self, title: str) -> Iterator[None]:
        self._steps += 1
        self._console.print()
        heading = Rule(f"[bold]{self._steps}  {title}", align="left", style="dim")
        self._console.print(heading, width=min(_WIDTH, self._console.width))
        began = time.monotonic()
        yield
        self._console.print(f"  [dim]{time.monotonic() - began:.1f} s[/]")

    def _say(self, line: str) -> None:
        self._console.print(f"  {line}", highlight=False, soft_wrap=True)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("  {task.description}"),
        BarColumn(bar_width=16),
        TextColumn("{task.completed:>7,.0f} of {task.total:,.0f}"),
        console=console,
    )
