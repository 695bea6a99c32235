"""A node of LakeMQ, and the versions of what is here."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness.declare import Missing, Running, Side
from benchmarks.sides.configured import CONFIGURATIONS, free_port
from lakemq import connect
from tests.support.node.node import NodeProcess

SPREAD_S = 60.0


def raise_file_limit() -> None:
    """As many descriptors as may be had; child processes inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def config(more: str = "") -> str:
    return (CONFIGURATIONS / "lakemq.toml").read_text() + more


@contextlib.contextmanager
def node(folder: Path, protocol: str, more: str = "") -> Iterator[Running]:
    raise_file_limit()
    with NodeProcess(folder, config(more)) as started:
        yield Running((started.pid,), started.mqtt_port, started.addresses[protocol])


@contextlib.contextmanager
def several(folder: Path, processes: int, partitions: int) -> Iterator[Running]:
    """`lakemq start --processes`, once the partitions are spread."""
    raise_file_limit()
    ports = {
        name: f"port = {free_port()}" for name in ("[meta]", "[plugins.native]", "[plugins.mqtt]")
    }
    text = config(f"[topics]\npartitions = {partitions}\n")
    for name, port in ports.items():
        text = text.replace(f"{name}\nport = 0", f"{name}\n{port}")
    text = f'[node]\nid = "n1"\nprocesses = {processes}\n{text}'
    with NodeProcess(folder, text) as started, connect(started.native) as client:
        deadline = time.monotonic() + SPREAD_S
        while len({each.leader for each in client.describe_topic("mqtt").partitions}) < processes:
            if time.monotonic() > deadline:
                raise Missing(f"partitions were not spread in {SPREAD_S:.0f} s")
            time.sleep(0.1)
        time.sleep(2)  # replicas that moved
        yield Running((started.pid,), started.mqtt_port, started.addresses["mqtt"])


FSYNCED = "an acknowledged publish is fsynced"
MQTT = Side("LakeMQ", FSYNCED, partial(node, protocol="mqtt"))
NATIVE = Side("LakeMQ", "an acknowledged record is fsynced", partial(node, protocol="native"))
FOUR_PARTITIONS = Side("LakeMQ", "4 partitions", partial(several, processes=1, partitions=4))
TWO_PROCESSES = Side(
    "LakeMQ, 2 processes", "4 partitions", partial(several, processes=2, partitions=4)
)
