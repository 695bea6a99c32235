"""A node of LakeMQ, and the versions of what is here."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from benchmarks.harness.declare import Missing, Running, Side
from benchmarks.sides.configured import CONFIGURATIONS, free_port
from lakemq import connect
from tests.support.node.node import NodeProcess

SPREAD_S = 60.0
ROOT = Path(__file__).parents[2]
COMPILED = ROOT / "build" / "compiled"


def raise_file_limit() -> None:
    """As many descriptors as may be had; child processes inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def config(more: str = "") -> str:
    return (CONFIGURATIONS / "lakemq.toml").read_text() + more


def compiled_tree() -> Path:
    """Where `make compiled` put this checkout with its extension modules. Raises Missing."""
    for module in COMPILED.glob("*/**/*.so"):
        source = module.with_name(f"{module.name.partition('.')[0]}.py").relative_to(COMPILED)
        if (COMPILED / source).read_bytes() != (ROOT / source).read_bytes():
            raise Missing(f"{source} was changed: make compiled")
        if not module.name.endswith(tuple(EXTENSION_SUFFIXES)):
            raise Missing(f"{module.name} is of another Python: make compiled")
    if not any(COMPILED.glob("*__mypyc.*.so")):
        raise Missing("it is not compiled: make compiled")
    return COMPILED


@contextlib.contextmanager
def node(
    folder: Path, protocol: str, more: str = "", *, compiled: bool = True
) -> Iterator[Running]:
    raise_file_limit()
    tree = compiled_tree() if compiled else ROOT
    with NodeProcess(folder, config(more), cwd=tree) as started:
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
    with (
        NodeProcess(folder, text, cwd=compiled_tree()) as started,
        connect(started.native) as client,
    ):
        deadline = time.monotonic() + SPREAD_S
        while len({each.leader for each in client.describe_topic("mqtt").partitions}) < processes:
            if time.monotonic() > deadline:
                raise Missing(f"partitions were not spread in {SPREAD_S:.0f} s")
            time.sleep(0.1)
        time.sleep(2)  # replicas that moved
        yield Running((started.pid,), started.mqtt_port, started.addresses["mqtt"])


FSYNCED = "an acknowledged publish is fsynced"
MQTT = Side("LakeMQ", FSYNCED, partial(node, protocol="mqtt"))
PURE = Side(
    "LakeMQ, not compiled",
    "as on what no wheel is for",
    partial(node, protocol="mqtt", compiled=False),
)
NATIVE = Side("LakeMQ", "an acknowledged record is fsynced", partial(node, protocol="native"))
FOUR_PARTITIONS = Side("LakeMQ", "4 partitions", partial(several, processes=1, partitions=4))
TWO_PROCESSES = Side(
    "LakeMQ, 2 processes", "4 partitions", partial(several, processes=2, partitions=4)
)
