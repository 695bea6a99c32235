"""Which replicas to move so that nodes and racks carry alike, moving as little as possible.

Replicas leave nodes that drain, leave or are gone; partitions with too few replicas get more; racks
are used where they are not; then counts are evened out, one replica at a time from the fullest node
to the emptiest, which is the least that levels them. A plan for a cluster that is level is empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple

from lakemq.meta_service.api.types import (
    NodeRegistration,
    PartitionDescription,
    TopicDescription,
    is_brokers_own,
    machine_of,
)
from lakemq.meta_service.catalog.control_commands import ACTIVE, FENCED
from lakemq.meta_service.catalog.nodes import holds_replicas, shared_rack
from lakemq.meta_service.control.leader_balance import spread_leaders

FULL_RATIO: Final = 0.9
"""A node whose disk is as full as this takes no more replicas."""
DISK_FIGURE: Final = "disk_used_ratio"
BYTES_FIGURE: Final = "stored_bytes"
_COMPARED_MAX: Final = 256
"""Partitions of a node that are compared before one of them moves."""

Loads = Mapping[str, Mapping[str, float]]
"""Figures of the nodes' heartbeats, by node id."""
Sizes = Mapping[tuple[str, int], int]
"""(topic id, partition) -> bytes, of those that leaders have told."""


class PlannedMove(NamedTuple):
    """One partition's new home."""

    topic: str
    topic_id: str
    partition: int
    partition_epoch: int
    replicas: tuple[str, ...]
    """Where it is, or is on its way to."""
    target: tuple[str, ...]
    """The preferred leader first."""

    @property
    def copies(self) -> int:
        """Replicas that must be copied; 0: only the leadership moves."""
        return len(set(self.target) - set(self.replicas))


def cheapest_first(moves: Sequence[PlannedMove], sizes: Sizes) -> list[PlannedMove]:
    """Those that copy nothing, then the smallest; what is of unknown size comes last."""

    def cost(move: PlannedMove) -> tuple[bool, float]:
        size = sizes.get((move.topic_id, move.partition), float("inf"))
        return bool(move.copies), size * move.copies if move.copies else 0.0

    return sorted(moves, key=cost)


@dataclass
class _Home:
    """One partition while the plan is made."""

    topic: TopicDescription
    partition: PartitionDescription
    before: tuple[str, ...]
    nodes: list[str] = field(default_factory=list)


def plan(
    topics: Sequence[TopicDescription],
    nodes: Sequence[NodeRegistration],
    leaving: Sequence[str] = (),
    loads: Loads | None = None,
    sizes: Sizes = MappingProxyType({}),
    size_max_bytes: int | None = None,
) -> list[PlannedMove]:
    """Moves, in the order of topics and partitions. Partitions without any replica are left out.

    `sizes`: leaders are spread by them. `size_max_bytes`: larger partitions, and those of unknown
    size, stay where they are, and are counted there.
    """
    return _Planner(
        topics, nodes, leaving, loads or {}, sizes=sizes, size_max_bytes=size_max_bytes
    ).plan()


def repair(
    topics: Sequence[TopicDescription],
    nodes: Sequence[NodeRegistration],
    dead: Sequence[str],
    loads: Loads,
) -> list[PlannedMove]:
    """Only what is not as its topic wants it: partitions with too few or too many replicas, and
    those with replicas on dead nodes, as far as a leader is there to copy from."""
    return _Planner(topics, nodes, dead, loads, keeps_without_leader=True).repair()


def wants_repair(topic: TopicDescription, partition: PartitionDescription, dead: set[str]) -> bool:
    """Whether `repair` would look at the partition."""
    home = partition.target or partition.replicas
    if not home or is_brokers_own(topic.name) or not _can_copy(partition, dead):
        return False
    return (topic.replication not in (0, len(home))) or not dead.isdisjoint(home)


def _can_copy(partition: PartitionDescription, dead: Collection[str]) -> bool:
    # A dead node may be named as the leader, where its records are nowhere else.
    return partition.leader is not None and partition.leader not in dead


class _Planner:
    def __init__(
        self,
        topics: Sequence[TopicDescription],
        nodes: Sequence[NodeRegistration],
        leaving: Sequence[str],
        loads: Loads,
        *,
        keeps_without_leader: bool = False,
        sizes: Sizes = MappingProxyType({}),
        size_max_bytes: int | None = None,
    ) -> None:
        """`keeps_without_leader`: nothing can be copied of a partition that no live node leads, so
        it stays where it is."""
        self._sizes = sizes
        self._racks = {node.node_id: node.rack for node in nodes}
        self._machines = {node.node_id: machine_of(node) for node in nodes}
        self._loads = loads
        stays = {n.node_id for n in nodes if n.state in (ACTIVE, FENCED)} - set(leaving)
        takes = sorted(
            n.node_id
            for n in nodes
            if n.state == ACTIVE and n.node_id in stays and holds_replicas(n)
        )
        self._takes = [node for node in takes if not self._is_full(node)]
        self._stays = stays if takes else set(self._racks)  # nowhere to go: stay
        homes = [
            _Home(topic, partition, partition.target or partition.replicas)
            for topic in topics
            for partition in topic.partitions
            # No broker copies those: a move of one would never end.
            if not is_brokers_own(topic.name)
            and partition.replicas
            and (not keeps_without_leader or _can_copy(partition, leaving))
        ]
        self._held: dict[str, dict[int, None]] = {node: {} for node in stays}
        self._of_topic = Counter[tuple[str, str]]()
        """(topic id, node) -> its replicas there, of partitions that may move."""
        self._homes, self._fixed = list[_Home](), list[_Home]()
        for home in homes:
            size = self._size(home)
            moves = size_max_bytes is None or (size is not None and size <= size_max_bytes)
            (self._homes if moves else self._fixed).append(home)

    def _size(self, home: _Home) -> int | None:
        return self._sizes.get((home.topic.topic_id, home.partition.partition))

    def _is_full(self, node: str) -> bool:
        return self._loads.get(node, {}).get(DISK_FIGURE, 0.0) >= FULL_RATIO

    def _weight(self, node: str) -> tuple[int, float, str]:
        # The name last, so that the same cluster always gives the same plan.
        return (len(self._held[node]), self._loads.get(node, {}).get(BYTES_FIGURE, 0.0), node)

    def repair(self) -> list[PlannedMove]:
        self._begin()
        for number, home in enumerate(self._homes):
            self._drop_surplus(number, home)
        return self._moves()

    def _drop_surplus(self, number: int, home: _Home) -> None:
        """Replicas beyond what the topic wants: its leader stays, and who is in sync rather than
        who is not; from the fullest nodes."""
        wanted = home.topic.replication
        while wanted and len(home.nodes) > wanted:
            last = max(
                (node for node in home.nodes if node != home.partition.leader),
                key=lambda node: (node not in home.partition.in_sync, *self._weight(node)),
            )
            home.nodes.remove(last)
            self._held[last].pop(number, None)
            self._of_topic[home.topic.topic_id, last] -= 1

    def plan(self) -> list[PlannedMove]:
        self._begin()
        for number, home in enumerate(self._homes):
            self._spread(number, home)
        self._level()
        self._lead()
        return self._moves()

    def _begin(self) -> None:
        for number, home in enumerate(self._fixed, 1):
            for node in self._stays.intersection(home.before):
                # A number that no partition has which may move.
                self._held.setdefault(node, {})[-number] = None
        for number, home in enumerate(self._homes):
            home.nodes = [node for node in home.before if node in self._stays]
            for node in home.nodes:
                self._held.setdefault(node, {})[number] = None
                self._of_topic[home.topic.topic_id, node] += 1
        for number, home in enumerate(self._homes):
            self._fill(number, home)

    def _moves(self) -> list[PlannedMove]:
        return [
            PlannedMove(
                home.topic.name,
                home.topic.topic_id,
                home.partition.partition,
                home.partition.partition_epoch,
                home.before,
                tuple(home.nodes),
            )
            for home in self._homes
            if tuple(home.nodes) != home.before
        ]

    # ------------------------------------------------------------ single partitions

    def _fill(self, number: int, home: _Home) -> None:
        """As many replicas as it had, and as its topic wants, where there are nodes for them."""
        wanted = max(len(home.before), home.topic.replication)
        while len(home.nodes) < wanted:
            node = self._best(home, home.nodes)
            if node is None:
                break
            self._place(number, node, home)
        # Rather a replica on a node that shall go than one fewer.
        missing = max(0, len(home.before) - len(home.nodes))
        back = [node for node in home.before if node not in home.nodes][:missing]
        old = [node for node in home.before if node in home.nodes or node in back]
        home.nodes = old + [node for node in home.nodes if node not in old]

    def _best(self, home: _Home, others: Sequence[str]) -> str | None:
        """The emptiest node that may take a replica beside `others`, on a machine of its own and
        as far from their racks as possible."""
        racks = {self._racks.get(node, "") for node in others}
        machines = {self._machines.get(node, node) for node in (*others, *home.nodes)}
        free = [node for node in self._takes if self._machines[node] not in machines]
        return min(
            free,
            key=lambda node: (shared_rack(self._racks[node], racks), *self._weight(node)),
            default=None,
        )

    def _place(self, number: int, node: str, home: _Home) -> None:
        home.nodes.append(node)
        self._held[node][number] = None
        self._of_topic[home.topic.topic_id, node] += 1

    def _swap(self, number: int, old: str, new: str) -> None:
        home = self._homes[number]
        home.nodes[home.nodes.index(old)] = new
        self._held[old].pop(number)
        self._held[new][number] = None
        self._of_topic[home.topic.topic_id, old] -= 1
        self._of_topic[home.topic.topic_id, new] += 1

    def _spread(self, number: int, home: _Home) -> None:
        """Where two replicas share a rack and another rack has none, one of them goes there."""
        while True:
            by_rack: dict[str, list[str]] = {}
            for node in home.nodes:
                by_rack.setdefault(self._racks.get(node, ""), []).append(node)
            crowded = [node for group in by_rack.values() if len(group) > 1 for node in group]
            crowded = [node for node in crowded if node in self._held]
            new = self._best(home, home.nodes)
            if not crowded or new is None or self._racks[new] in by_rack:
                return
            self._swap(number, max(crowded, key=self._weight), new)

    # ------------------------------------------------------------ all of them

    def _level(self) -> None:
        """From the fullest to the emptiest, while that brings them nearer to each other."""
        moved = True
        while moved:  # what was in the way at first may have moved since
            moved, blocked = False, set[tuple[str, str]]()
            while move := self._step(blocked):
                self._swap(*move)
                moved = True

    def _step(self, blocked: set[tuple[str, str]]) -> tuple[int, str, str] | None:
        """(partition's place in the list, from, to). Notes pairs between which nothing can move."""
        fullest = sorted(self._held, key=self._weight, reverse=True)
        emptiest = sorted(self._takes, key=self._weight)
        for old in fullest:
            for new in emptiest:
                if len(self._held[old]) - len(self._held[new]) < 2:
                    break
                number = None if (old, new) in blocked else self._movable(old, new)
                if number is not None:
                    return number, old, new
                blocked.add((old, new))
        return None

    def _movable(self, old: str, new: str) -> int | None:
        """A partition on the one node that may go to the other: of the topic that has most more
        replicas there, so that each topic is spread, and not only the sum of all."""
        held, best, surplus = self._held[old], None, 0
        for number in islice([each for each in held if each >= 0], _COMPARED_MAX):
            home = self._homes[number]
            topic_id = home.topic.topic_id
            more = self._of_topic[topic_id, old] - self._of_topic[topic_id, new]
            if best is not None and more <= surplus:
                continue
            if new not in home.nodes and self._keeps_racks(home, old, new):
                best, surplus = number, more
        if best is None and len(held) > _COMPARED_MAX:
            best = self._any_movable(old, new)
        return best

    def _any_movable(self, old: str, new: str) -> int | None:
        held = self._held[old]
        for number in [each for each in held if each >= 0]:
            home = self._homes[number]
            if new not in home.nodes and self._keeps_racks(home, old, new):
                return number
            held[number] = held.pop(number)  # to the end: the next search begins elsewhere
        return None

    def _keeps_racks(self, home: _Home, old: str, new: str) -> bool:
        others = [node for node in home.nodes if node != old]
        if self._machines[new] in {self._machines.get(node, node) for node in others}:
            return False
        racks = {self._racks.get(node, "") for node in others}
        return shared_rack(self._racks[new], racks) <= shared_rack(self._racks.get(old, ""), racks)

    def _lead(self) -> None:
        """First replicas evenly: it costs no copy. Those that need not change stay."""
        led, led_bytes = dict.fromkeys(self._racks, 0), Counter[str]()
        for home in self._fixed:
            led[home.before[0]] = led.get(home.before[0], 0) + 1
            led_bytes[home.before[0]] += self._size(home) or 0
        spread_leaders(
            [home.nodes for home in self._homes],
            [self._size(home) or 0 for home in self._homes],
            led,
            led_bytes,
        )
