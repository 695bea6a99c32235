"""What each process of a node is told, as variables that override the configuration file.

The first process is the node itself: its id, its data folder, its ports, the MetaService. The
others are brokers beside it, with a node id (`n1.p2`), a folder and ports of their own; the rack
tells that they share a machine, so that replicas of a partition never do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lakemq.broker_core.cluster.local import sockets
from lakemq.broker_core.configuration.config import Config
from lakemq.broker_core.configuration.settings import PROCESSES_MAX
from lakemq.meta_service.api.hosts import is_wildcard, join_host
from lakemq.meta_service.api.types import process_id

_PORTS_EACH: Final = 2


def count_of(config: Config) -> int:
    """How many processes the node shall have."""
    wanted = config.node.processes
    if wanted == "auto":
        return min(PROCESSES_MAX, _processors())
    return wanted


def _processors() -> int:
    """Those that this process may use, where the system tells; else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check(config: Config) -> None:
    """Raises ConfigError: what processes can't share."""
    if "broker" not in config.node.roles:
        raise config.source.error(
            ("node", "processes"), "a member of the MetaService alone is one process"
        )
    if "meta" in config.node.roles and not config.meta.port:
        raise config.source.error(
            ("meta", "port"), "it is 0: the other processes of the node must know it"
        )
    if config.cluster.advertise and not config.node.process_ports:
        raise config.source.error(
            ("node", "process_ports"),
            "it is 0: with cluster.advertise others must know the port of each process",
        )
    last = client_port(config, count_of(config)) + 1
    if config.node.process_ports and last > 65535:
        raise config.source.error(("node", "process_ports"), f"the last port would be {last}")


def client_port(config: Config, number: int) -> int:
    """Where clients reach one process alone; 0: the system chooses."""
    first = config.node.process_ports
    return first + _PORTS_EACH * (number - 1) if first else 0


def folder_of(config: Config, number: int) -> Path:
    """Where a process keeps what it stores."""
    whole = Path(config.node.data_dir).expanduser().absolute()
    return sockets.folder_of(whole, number)


def variables(config: Config, number: int) -> Iterator[tuple[str, str]]:
    """(name, value as TOML has it) of what process `number` has of its own."""
    node, cluster, meta = config.node, config.cluster, config.meta
    yield "LAKEMQ_NODE__PROCESS", str(number)
    yield "LAKEMQ_NODE__RACK", "/".join(filter(None, (node.rack, node.id)))
    if number == 1:
        return
    yield "LAKEMQ_NODE__ID", process_id(node.id, number)
    yield "LAKEMQ_NODE__DATA_DIR", str(folder_of(config, number))
    yield "LAKEMQ_NODE__ROLES", '["broker"]'
    if "meta" in node.roles:
        host = meta.host or node.host
        own = join_host("127.0.0.1" if is_wildcard(host) else host, meta.port)
        # Its own first: it is there whenever this process is.
        yield "LAKEMQ_META__JOIN", json.dumps([own, *(each for each in meta.join if each != own)])
    own_port = client_port(config, number)
    peer_port = own_port + 1 if own_port else 0
    yield "LAKEMQ_CLUSTER__PEER_PORT", str(peer_port)
    if cluster.advertise:
        host = cluster.advertise.rpartition(":")[0]
        yield "LAKEMQ_CLUSTER__ADVERTISE", f"{host}:{peer_port}"


def left_behind(config: Config, count: int) -> list[str]:
    """Node ids of processes beyond `count` that the node once had, and that have records."""
    folder = folder_of(config, 1) / sockets.FOLDER
    try:
        names = [each.name for each in folder.iterdir()]
    except OSError:  # a data folder that can't be used is told when it is opened
        return []
    numbers = sorted(int(each) for each in names if each.isdecimal() and int(each) > count)
    return [process_id(config.node.id, each) for each in numbers]
