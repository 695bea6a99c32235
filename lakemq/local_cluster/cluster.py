"""Some nodes on 127.0.0.1 that form one cluster, each a process with a folder of its own."""

from __future__ import annotations

import atexit
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from lakemq.local_cluster.links import Links
from lakemq.local_cluster.ports import free_ports
from lakemq.local_cluster.process import START_MAX_S, STOP_MAX_S, NodeFailed, NodeProcess
from lakemq.local_cluster.toml_text import merged, toml_text

HOST: Final = "127.0.0.1"
META_MEMBERS_MAX: Final = 3
_KEPT_OF_A_LOST_DISK: Final = ("meta", "node.json", "lock")
LINKED: Final = ("raft", "meta", "peer")
"""Listeners at which nodes reach each other."""
_PORTS: Final = (*LINKED, "native", "mqtt", "admin")


class LocalCluster:
    """Nodes `n1`, `n2`, ... The first three hold the MetaService. Their ports stay the same when
    they are started again.

    Made without a process; `start`, or a `with` statement, starts them, and `stop` ends every one
    of them for good, whatever state it is in.
    """

    def __init__(
        self, folder: Path, nodes: int = 3, *, config: str = "", links: bool = True
    ) -> None:
        """`folder`: gets a folder of each node. `config`: TOML that all nodes share. `links`:
        whether the links between nodes can be cut; each then passes a relay of this process."""
        if nodes < 1:
            raise ValueError(f"{nodes} nodes: at least one is needed")
        self.folder = folder
        self.names = tuple(f"n{number + 1}" for number in range(nodes))
        drawn = free_ports(len(_PORTS) * nodes)
        size = len(_PORTS)
        self._ports: dict[str, dict[str, int]] = {
            name: dict(zip(_PORTS, drawn[at * size : (at + 1) * size], strict=True))
            for at, name in enumerate(self.names)
        }
        self._pids: dict[str, int] = {}
        self._links = Links(self._pids) if links else None
        shared = tomllib.loads(config)
        reached = {name: self._reached(name) for name in self.names}
        self.nodes: dict[str, NodeProcess] = {
            name: NodeProcess(
                name, folder / name, toml_text(merged(shared, self._settings(name, reached)))
            )
            for name in self.names
        }

    def _reached(self, name: str) -> dict[str, str]:
        """Purpose of a port -> `host:port` under which other nodes reach this one."""
        ports, links = self._ports[name], self._links
        return {
            purpose: f"{HOST}:{links.relay(name, purpose, port) if links is not None else port}"
            for purpose, port in ports.items()
            if purpose in LINKED
        }

    def _settings(self, name: str, reached: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
        ports = self._ports[name]
        members = self.names[:META_MEMBERS_MAX]
        meta: dict[str, Any] = {
            "port": ports["meta"],
            "raft_port": ports["raft"],
            "advertise_api": reached[name]["meta"],
        }
        if name in members:
            meta["members"] = {each: reached[each]["raft"] for each in members}
        else:
            meta["join"] = [reached[each]["meta"] for each in members]
            meta["advertise"] = reached[name]["raft"]
        return {
            "node": {"id": name, "host": HOST},
            "meta": meta,
            "cluster": {"peer_port": ports["peer"], "advertise": reached[name]["peer"]},
            "admin": {"port": ports["admin"]},
            "plugins": {"native": {"port": ports["native"]}, "mqtt": {"port": ports["mqtt"]}},
        }

    # -- where it is

    @property
    def bootstrap(self) -> list[str]:
        """`host:port` of the native listener of every node, also of those that are down."""
        return [f"{HOST}:{self._ports[name]['native']}" for name in self.names]

    @property
    def meta(self) -> list[str]:
        """`host:port` of every MetaService member."""
        return [f"{HOST}:{self._ports[name]['meta']}" for name in self.names[:META_MEMBERS_MAX]]

    def address(self, name: str, listener: str = "native") -> str:
        """`host:port` of one listener of a node: native, mqtt, admin or meta."""
        return f"{HOST}:{self._ports[name][listener]}"

    @property
    def running(self) -> list[str]:
        """Nodes whose process is there, paused ones too."""
        return [name for name, node in self.nodes.items() if node.running]

    # -- processes

    def start(self, *names: str, timeout_s: float = START_MAX_S) -> Self:
        """Start every node that does not run, or those of them that are named, together; returns
        when all of them serve. Raises NodeFailed, with all stopped."""
        # Also where an exception ends this process before `stop` is called.
        atexit.register(self.stop)
        started = [name for name in names or self.names if not self.nodes[name].running]
        try:
            for name in started:
                self._launch(name)
            for name in started:
                self.nodes[name].wait_ready(timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    def _launch(self, name: str) -> None:
        if self._links is not None:
            self._links.up(name)
        self.nodes[name].launch()
        self._pids[name] = self.nodes[name].pid

    def start_node(self, name: str, timeout_s: float = START_MAX_S) -> None:
        """Start one that is down; returns when it serves. Raises NodeFailed."""
        self._launch(name)
        self.nodes[name].wait_ready(timeout_s)

    def kill(self, *names: str) -> None:
        """SIGKILL, of several at once."""
        for name in names:
            process = self.nodes[name].process
            if process is not None:
                process.kill()
        for name in names:
            self.nodes[name].kill()
            self._gone(name)

    def _gone(self, name: str) -> None:
        if self._links is not None:
            self._links.down(name)

    def restart(self, name: str, timeout_s: float = START_MAX_S) -> None:
        """Kill the node if it runs, and start it."""
        self.kill(name)
        self.start_node(name, timeout_s)

    def terminate(self, name: str, timeout_s: float = STOP_MAX_S) -> int:
        """SIGTERM, as an operator stops a node; its exit code. Raises NodeFailed."""
        try:
            return self.nodes[name].terminate(timeout_s)
        finally:
            self._gone(name)

    def pause(self, name: str) -> None:
        """SIGSTOP: the node stands still until `resume`."""
        self.nodes[name].pause()

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self.nodes[name].resume()

    def lose_disk(self, name: str) -> None:
        """Kill the node if it runs, and remove what it stored of topics. Its part of the
        MetaService stays: a member that forgets its votes is another fault."""
        self.kill(name)
        for each in self.nodes[name].data_dir.iterdir():
            if each.name not in _KEPT_OF_A_LOST_DISK:
                shutil.rmtree(each) if each.is_dir() else each.unlink()

    def stop(self) -> None:
        """Kill every process; what they stored stays. Safe to call twice."""
        atexit.unregister(self.stop)
        self.kill(*self.names)
        links, self._links = self._links, None
        if links is not None:
            links.close()

    # -- links

    def cut(
        self,
        source: str,
        target: str,
        *,
        both: bool = True,
        listeners: Sequence[str] = LINKED,
    ) -> None:
        """Nothing that `source` sends to `target` arrives until `heal`, nor, with `both`, the other
        way. `listeners`: only of connections to these: `raft` (members of the MetaService), `meta`
        (its clients, as brokers are), `peer` (brokers). Links of clients to nodes are not cut."""
        self._cuttable().cut(source, target, listeners)
        if both:
            self._cuttable().cut(target, source, listeners)

    def slow(self, source: str, target: str, delay_s: float) -> None:
        """What `source` and `target` send to each other arrives so much later, each way, until
        `heal`."""
        self._cuttable().slow(source, target, delay_s)
        self._cuttable().slow(target, source, delay_s)

    def isolate(self, name: str) -> None:
        """Cut a node off from all other nodes."""
        for other in self.names:
            if other != name:
                self.cut(name, other)

    def heal(self) -> None:
        """Every link works again as it was made; what waited in it arrives."""
        self._cuttable().heal()

    def _cuttable(self) -> Links:
        if self._links is None:
            raise NodeFailed("the cluster was made without links that can be cut, or is stopped")
        return self._links

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *failure: object) -> None:
        self.stop()
