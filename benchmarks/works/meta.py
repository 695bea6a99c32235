"""The MetaService beside etcd, and the start of a node."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness.declare import Goal, Running, Sample, Side, Work
from benchmarks.harness.processes import cpu_s, measuring_itself, rss_mb
from benchmarks.load import meta
from benchmarks.sides.lakemq import config
from benchmarks.works.native import load
from tests.support.node.node import NodeProcess


@contextlib.contextmanager
def members(folder: Path, opened) -> Iterator[Running]:  # type: ignore[no-untyped-def]
    """Members are children of the process that asks them, so all count."""
    with measuring_itself(opened, folder) as side:
        yield side


METASERVICE = Side("MetaService", "", partial(members, opened=meta.metaservice))
ETCD = Side("etcd", "", partial(members, opened=meta.etcd))
BOTH = (METASERVICE, ETCD)


def bytecode(folder: Path) -> dict[str, str]:
    """Containers that set PYTHONDONTWRITEBYTECODE would measure Python's compiler."""
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


@contextlib.contextmanager
def nowhere(folder: Path) -> Iterator[Running]:
    """All modules are compiled, as installers do."""
    with NodeProcess(folder / "compiled", config(), bytecode(folder)):
        pass
    yield Running(address=str(folder))


def start(side: Running, _seconds: float) -> Sample:
    """From the command to `ready`, with an empty data folder at first, with its own then."""
    folder = Path(side.address)
    began = time.perf_counter()
    with NodeProcess(folder, config(), bytecode(folder)) as node:
        took = time.perf_counter() - began
        return {"first_s": took, "cpu_s": cpu_s([node.pid]), "rss_mb": rss_mb([node.pid])}


WORKS = (
    Work(
        "meta-write",
        "meta",
        "3 members, mutual TLS, fsync before every ack; one write of 100 bytes after the other "
        "over gRPC.",
        BOTH,
        partial(load, "write"),
        (Goal("p50_ms", 1.3, "etcd"), Goal("p99_ms", 1.3, "etcd")),
        seconds=2,
    ),
    Work(
        "meta-read",
        "meta",
        "The same with linearizable reads.",
        BOTH,
        partial(load, "read"),
        seconds=2,
        full=True,
    ),
    Work(
        "meta-writes",
        "meta",
        "The same with 256 outstanding writes.",
        BOTH,
        partial(load, "writes"),
        seconds=2,
    ),
    Work(
        "meta-failover",
        "meta",
        "The longest time without an acknowledged write when the leader is killed.",
        (METASERVICE,),
        partial(load, "failover"),
        full=True,
    ),
    Work(
        "start",
        "meta",
        "Start of a node, from the command to `ready`.",
        (Side("LakeMQ", "", nowhere),),
        start,
        (Goal("first_s", 0.5),),
        seconds=1,
    ),
)
