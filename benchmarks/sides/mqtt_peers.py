"""Mosquitto, NATS with its MQTT listener, and amqtt."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness.declare import Missing, Running, Side
from benchmarks.harness.processes import program
from benchmarks.sides.configured import filled, free_port
from benchmarks.sides.lakemq import raise_file_limit

PROGRAMS = Path("build/bench/bin")
"""Where `make bench-peers` puts what no package of the system has."""


def found(name: str, had_by: str) -> str:
    """Path of a program. Raises Missing."""
    own = PROGRAMS / name
    path = str(own.absolute()) if own.exists() else shutil.which(name)
    if path is None:
        raise Missing(f"there is no {name} ({had_by})")
    return path


@contextlib.contextmanager
def mosquitto(folder: Path) -> Iterator[Running]:
    command, port = found("mosquitto", "apt-get install mosquitto"), free_port()
    raise_file_limit()
    path = filled("mosquitto.conf", folder, port=port)
    with program([command, "-c", str(path)], port, folder / "log") as pid:
        yield Running((pid,), port, f"127.0.0.1:{port}")


@contextlib.contextmanager
def nats(folder: Path, protocol: str = "mqtt", sync: str = '"2m"') -> Iterator[Running]:
    """`protocol`: whose port is told, mqtt or core."""
    command = found("nats-server", "make bench-peers, or apt-get install nats-server")
    raise_file_limit()
    ports = {"mqtt": free_port(), "core": free_port()}
    path = filled(
        "nats.conf", folder, port=ports["mqtt"], core=ports["core"], folder=folder, sync=sync
    )
    with program([command, "-c", str(path)], ports["mqtt"], folder / "log") as pid:
        yield Running((pid,), ports[protocol], f"127.0.0.1:{ports[protocol]}")


@contextlib.contextmanager
def amqtt(folder: Path) -> Iterator[Running]:
    script, port = Path(sys.executable).with_name("amqtt"), free_port()
    if not script.exists():
        raise Missing("there is no amqtt (pip install amqtt)")
    path = filled("amqtt.yaml", folder, port=port)
    with program([str(script), "-c", str(path)], port, folder / "log") as pid:
        yield Running((pid,), port, f"127.0.0.1:{port}")


MOSQUITTO = Side("Mosquitto", "an acknowledged publish is in memory, nothing is stored", mosquitto)
NATS = Side("NATS", "JetStream: an acknowledged publish is in the page cache", nats)
NATS_CORE = Side("NATS", NATS.settings, partial(nats, protocol="core"))
NATS_FSYNCED = Side(
    "NATS, fsynced", "JetStream with `sync_interval: always`", partial(nats, sync="always")
)
AMQTT = Side("amqtt", "an acknowledged publish is in memory", amqtt)
