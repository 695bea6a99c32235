"""kill -9 in the middle of the road: no acknowledged reading is missing from the table.

Devices publish real readings at QoS 1. While they do, the broker is killed again and again and
started on the same data folder; the devices connect again and go on. Then the topic is exported,
and the Delta table is compared with what was sent.

QoS 1 is at least once: what was stored but not acknowledged when the broker died is sent again and
may lie in the table twice. Such copies are told apart: only readings that were in flight at a kill
may have them; all others, acknowledged before or sent after, must be there exactly once.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from examples.air_quality.comparison import compare
from examples.air_quality.demo import JAVA_OPTIONS
from examples.air_quality.devices import IN_FLIGHT_MAX, Fleet
from examples.air_quality.readings import TOPIC, Reading, parse
from tests.support.node.node import PORTS_FREE, NodeProcess

KILLS = int(os.environ.get("LAKEMQ_KILLS", "2"))
ROWS = 200 * (KILLS + 1)
KILLS_AT = tuple(13 * 200 * (kill + 1) - 600 for kill in range(KILLS))
"""Readings acknowledged when the broker is killed, of 13 sensors x ROWS."""
NOTICE_S = 0.3
"""In this time the devices read the last acknowledgements and find their connections lost (s)."""
CSV = Path(__file__).parents[3] / "examples/air_quality/AirQualityUCI.csv"
CONFIG = f"""
{PORTS_FREE}
[[plugins.mqtt.bindings]]
filter = "{TOPIC}/#"
topic = "{TOPIC}"

[topics]
partitions = 3
segment_max_bytes = 65536
"""


class Killer(threading.Thread):
    """Kills the broker and starts it again, each time a few ms after so many readings were
    acknowledged: at whatever it is doing then."""

    def __init__(self, node: NodeProcess, dice: random.Random) -> None:
        super().__init__()
        self.acknowledged: list[int] = []
        """For each kill, how many readings were acknowledged when it came."""
        self.in_flight: list[set[Reading]] = []
        """For each kill, what was sent and not acknowledged when the devices had noticed it."""
        self.failure: BaseException | None = None
        self.fleet: Fleet
        self._node = node
        self._dice = dice
        self._due = [threading.Event() for _ in KILLS_AT]

    def notice(self, acknowledged: int) -> None:
        for threshold, due in zip(KILLS_AT, self._due, strict=True):
            if acknowledged >= threshold:
                due.set()

    def run(self) -> None:
        try:
            for due in self._due:
                due.wait()
                time.sleep(self._dice.random() * 0.02)
                self.acknowledged.append(len(self.fleet.acknowledged()))
                self._node.kill()
                time.sleep(NOTICE_S)
                self.in_flight.append(set(self.fleet.in_flight()))
                self._node.start()
        except BaseException as error:  # told by the test, which has given up waiting by then
            self.failure = error


@pytest.mark.fault
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_no_acknowledged_reading_is_missing_after_kill_9(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    with CSV.open() as lines:
        readings = {sensor: each[:ROWS] for sensor, each in parse(lines).items()}
    node = NodeProcess(tmp_path, CONFIG).start()
    killer = Killer(node, random.Random(seed))
    fleet = killer.fleet = Fleet(readings, lambda: node.addresses["mqtt"], killer.notice)
    try:
        killer.start()
        fleet.replay()
        killer.join()
        assert killer.failure is None
        stored = export(node.native, tmp_path / "table")
    finally:
        node.kill()

    sent = [reading for each in readings.values() for reading in each]
    assert sorted(fleet.acknowledged()) == sorted(sent)
    assert max(killer.acknowledged) < len(sent)
    in_flight_at_kill = set().union(*killer.in_flight)
    assert in_flight_at_kill

    comparison = compare(sent, stored)
    print(
        f"killed at {killer.acknowledged} of {len(sent)}; {len(stored)} stored, "
        f"{len(comparison.doubled)} sent again of {len(in_flight_at_kill)} in flight at a kill"
    )
    assert comparison.lost == []
    assert comparison.strangers == []
    assert in_flight_at_kill.issuperset(comparison.doubled)
    assert len(in_flight_at_kill) <= len(KILLS_AT) * len(readings) * IN_FLIGHT_MAX


def export(native: str, path: Path) -> list[Reading]:
    """`lakemq export` into a Delta table; the readings in it."""
    subprocess.run(
        [sys.executable, "-m", "lakemq", "export", "--bootstrap", native, "--topic", TOPIC,
         "--to", "delta", "--path", str(path)],
        check=True, timeout=400, env={**os.environ, "JAVA_TOOL_OPTIONS": JAVA_OPTIONS},
    )  # fmt: skip
    files = DeltaTable(path).file_uris()
    table = pa.concat_tables([pq.read_table(file, columns=["key", "value"]) for file in files])
    found = []
    for row in table.to_pylist():
        reading = json.loads(row["value"], parse_float=Decimal, parse_int=Decimal)
        sensor = row["key"].decode().removeprefix(f"{TOPIC}/")
        found.append(Reading(sensor, reading["time"], reading["value"]))
    return found
