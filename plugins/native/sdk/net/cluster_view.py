"""What a client knows of a cluster: who leads which partition, and where nodes are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from lakemq.broker_core.api.errors import (
    LakeMQError,
    NotLeader,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)

NOWHERE: Mapping[str, str] = MappingProxyType({})


class Route(NamedTuple):
    """Where to ask for a partition."""

    address: str
    """`host:port`; empty: the node that tells metadata."""
    epoch: int
    """Of the leadership, to be sent along; 0: not known."""


class ReadRoute(NamedTuple):
    """Where to read a partition."""

    address: str
    """As in `Route`."""
    epoch: int
    follower: bool
    """Whether another replica than the leader's is meant, which is in sync."""


HERE = Route("", 0)
AVOIDED_S = 30.0
"""How long a follower that could not serve a partition is not asked for it again."""
METADATA_LAG_S = 5.0
"""A node may take so long to hear of a topic that another has made."""


def is_lost(there: ReadRoute, failure: LakeMQError) -> bool:
    """Whether a leader could not be reached. The node that the client is connected to is asked
    then: it hears of its death, of another leader or of another address."""
    return bool(there.address) and not there.follower and isinstance(failure, Unavailable)


class ClusterView:
    """Follows updates; `version` grows whenever something is not as it was."""

    def __init__(self) -> None:
        self.version = 0
        self.node_id = ""
        """The node that tells metadata."""
        self._addresses: dict[str, str] = {}
        self._leaders: dict[str, list[tuple[str, int]]] = {}
        """Topic -> (leader, epoch) by partition."""
        self._racks: dict[str, str] = {}
        self._fenced: frozenset[str] = frozenset()
        """Addresses of nodes that the MetaService does not hear."""
        self._in_sync: dict[str, list[Sequence[str]]] = {}
        """Topic -> node ids by partition, where that was asked for."""
        self._avoided_s: dict[tuple[str, int], tuple[str, float]] = {}
        """Partition -> the address that could not serve it, until when."""
        self._created_s: dict[str, float] = {}
        """Topics that this client has created of late -> when."""

    def connected(self, node_id: str) -> None:
        """Metadata is complete again, from this node."""
        self.node_id = node_id
        # Addresses are kept: the update that follows replaces them where it carries any.
        self._leaders.clear()
        self.version += 1

    def set_nodes(
        self,
        addresses: Mapping[str, str],
        racks: Mapping[str, str] = NOWHERE,
        fenced: Iterable[str] = (),
    ) -> None:
        """Replace the addresses, node id -> `host:port`, racks, and which nodes are fenced."""
        self._addresses = dict(addresses)
        self._racks = dict(racks)
        self._fenced = frozenset(addresses.get(each, "") for each in fenced) - {""}
        self.version += 1

    def set_topic(
        self, name: str, leaders: list[tuple[str, int]], in_sync: Sequence[Sequence[str]] = ()
    ) -> None:
        """Replace (leader, leader epoch) of the partitions of a topic, and who is in sync."""
        self._leaders[name] = leaders
        self._in_sync[name] = list(in_sync)
        self.version += 1

    def remove_topic(self, name: str) -> None:
        """The topic was deleted."""
        self._leaders.pop(name, None)
        self._in_sync.pop(name, None)
        self.version += 1

    def created(self, topic: str, now_s: float) -> None:
        """This client has created the topic, or given it partitions: not each node has heard of
        that."""
        late_s = now_s - METADATA_LAG_S
        self._created_s = {name: at for name, at in self._created_s.items() if at > late_s}
        self._created_s[topic] = now_s

    def deleted(self, topic: str) -> None:
        """This client has deleted the topic: a node that does not know it is right."""
        self._created_s.pop(topic, None)

    def may_lag(self, error: LakeMQError, topic: str, address: str, now_s: float) -> bool:
        """Whether the node at `address` (as in `Route`) may only not have heard yet of a topic or
        partition: it is not the one that told us of it, or it may not be the one at which we have
        created it just now."""
        if not isinstance(error, UnknownTopic | UnknownPartition):
            return False
        return bool(address) or now_s < self._created_s.get(topic, -METADATA_LAG_S) + METADATA_LAG_S

    def partitions(self, topic: str) -> int | None:
        """How many it has; None: not known."""
        found = self._leaders.get(topic)
        return None if found is None else len(found)

    def topics(self) -> list[str]:
        """Names of the topics that are known, sorted."""
        return sorted(self._leaders)

    def route(self, topic: str, partition: int) -> Route:
        """Where to ask for a partition; `HERE` if its leader is not known."""
        leaders = self._leaders.get(topic, [])
        if not 0 <= partition < len(leaders):
            return HERE
        leader, epoch = leaders[partition]
        if leader in ("", self.node_id):
            return Route("", epoch)
        # A leader without a known address: ask the bootstrap node, whose refusal carries it.
        return Route(self._addresses.get(leader, ""), epoch)

    def read_route(self, topic: str, partition: int, rack: str, now_s: float) -> ReadRoute:
        """Where to read a partition: from a node of the rack that has it in sync, else from the
        leader; safe to call from any thread. `rack`: empty: from the leader."""
        address, epoch = self.route(topic, partition)
        in_sync = self._in_sync.get(topic, [])
        leaders = self._leaders.get(topic, [])
        if not rack or not 0 <= partition < min(len(in_sync), len(leaders)):
            return ReadRoute(address, epoch, False)
        leader = leaders[partition][0]
        near = sorted(
            node
            for node in in_sync[partition]
            if node in self._addresses
            # Racks may be paths: `eu-1/r2` lies within `eu-1`.
            and f"{self._racks.get(node, '')}/".startswith(f"{rack}/")
        )
        if not near or leader in near:
            return ReadRoute(address, epoch, False)
        # Readers of many partitions shall not all go to one of several.
        chosen = near[partition % len(near)]
        there = self._addresses[chosen]
        avoided, until_s = self._avoided_s.get((topic, partition), (None, 0.0))
        if there == avoided and now_s < until_s:
            return ReadRoute(address, epoch, False)
        return ReadRoute(there, epoch, True)

    def avoid(self, topic: str, partition: int, address: str, now_s: float) -> None:
        """The follower there could not serve the partition."""
        self._avoided_s[topic, partition] = (address, now_s + AVOIDED_S)

    def forgive(self, now_s: float) -> bool:
        """Forget the followers that may be asked again by now; whether there were any."""
        # Copied first: blocking readers avoid followers from their own threads.
        over = [at for at, (_, until_s) in list(self._avoided_s.items()) if until_s <= now_s]
        for at in over:
            self._avoided_s.pop(at, None)
        return bool(over)

    def address_of(self, node_id: str) -> str:
        """`host:port` of the node; empty if it is not known."""
        return self._addresses.get(node_id, "")

    def leader_at(self, topic: str, partition: int) -> Route:
        """As `route`, with the leader's address also if it is the node that tells metadata; safe to
        call from any thread."""
        leaders = self._leaders.get(topic, [])
        if not 0 <= partition < len(leaders):
            return HERE
        leader, epoch = leaders[partition]
        return Route(self._addresses.get(leader, ""), epoch)

    def is_fenced(self, address: str) -> bool:
        """Whether the node at `address` is one that coordinates and leads nothing, as it is not
        heard."""
        return address in self._fenced

    def addresses(self) -> list[str]:
        """Of all nodes that are known, by their ids."""
        return [self._addresses[node] for node in sorted(self._addresses)]

    def led_elsewhere(self, topic: str, partition: int, address: str) -> bool:
        """Whether another node than the one at `address` (as in `Route`) is known to lead."""
        leaders = self._leaders.get(topic, [])
        if not 0 <= partition < len(leaders):
            return False
        leader = leaders[partition][0]
        if not leader or (leader != self.node_id and leader not in self._addresses):
            return False
        return self.route(topic, partition).address != address

    def learn(self, topic: str, partition: int, error: NotLeader) -> bool:
        """Take the leader that a node named; whether that was new, and of use."""
        if not error.leader:
            return False
        if error.address:
            self._addresses[error.leader] = error.address
            # A stream that was opened at the bootstrap node stays there while that node stops, and
            # metadata comes from the next one already: only its address is sure to lead there.
            if error.leader == self.node_id:
                self.node_id = ""
                self.version += 1
        leaders = self._leaders.setdefault(topic, [])
        while len(leaders) <= partition:
            leaders.append(("", 0))
        known = leaders[partition]
        # Leader epochs only grow (KIP-101): a node that is behind must not take us back to a former
        # leader.
        if error.epoch < known[1] or known == (error.leader, error.epoch):
            return False
        leaders[partition] = (error.leader, error.epoch)
        self.version += 1
        return True
