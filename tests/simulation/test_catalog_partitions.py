"""Goal: whatever nodes, leaders, operators and two controllers ask of the catalog, in what order
and however late, its partitions keep what replication rests on.

Real commands through the real `apply`: a few nodes that are started again, with the same disk, with
another one, with damaged replicas; leaders that change in-sync sets by epochs of the moment or of
long ago; moves, drains, unclean words; settling that comes late, in part, twice. The rules are
checked behind every command.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from lakemq.meta_service.api.types import NodeRegistration, PartitionDescription, TopicDescription
from lakemq.meta_service.catalog.apply import Applied
from lakemq.meta_service.catalog.command_codec import Command
from lakemq.meta_service.catalog.commands import (
    CreateTopic,
    DeleteTopic,
    RegisterNode,
    SetFeatureLevel,
)
from lakemq.meta_service.catalog.control_commands import (
    ElectLeaders,
    RemoveNode,
    SetNodeState,
)
from lakemq.meta_service.catalog.moves import StartMoves
from lakemq.meta_service.catalog.nodes import all_nodes
from lakemq.meta_service.catalog.pages.commands import (
    AlterReplicatedTopic,
    ChangeInSyncMany,
    CreateReplicatedTopic,
    ElectUnclean,
    FinishMovesInPages,
    ForgetLost,
    LeaveNode,
    PageTopics,
    RegisterBroker,
    Resign,
    SettlePages,
)
from lakemq.meta_service.catalog.pages.rows import decode_page, index_prefix
from lakemq.meta_service.catalog.tables import (
    KEYS,
    LEADER_COUNTS,
    MEMBER_COUNTS,
    NODE_PAGES,
    PAGE_PREFIX,
    REPLICA_COUNTS,
    TOPIC_PREFIX,
    decode_number,
    decode_row,
)
from lakemq.meta_service.catalog.topics import find_topic, is_paging_done
from tests.support.meta.catalog_rig import Catalog
from tests.support.seeds import chunks, seeds

SEEDS = seeds(40)
STEPS = 100
NODES = ("n1", "n2", "n3", "n4")
_ONCE = (RegisterBroker, CreateReplicatedTopic)
"""A late one has another client id, and thus another meaning."""
Key = tuple[str, int]
"""(topic id, partition)."""


@dataclass
class History:
    """What the checks remember between two commands."""

    partitions: dict[Key, PartitionDescription] = field(default_factory=dict)
    epochs: dict[Key, tuple[int, int]] = field(default_factory=dict)
    storage: dict[tuple[Key, str], str] = field(default_factory=dict)
    """Of a member, when it became one: its disk then."""


class World:
    """A catalog, the disks of its nodes, and a random source."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.catalog = Catalog()
        self.disks = dict.fromkeys(NODES, 1)
        self.topics = 0
        self.history = History()
        self.admitted: dict[tuple[str, int], bool] = {}
        self.past: list[Command] = []
        self.topics_now: list[TopicDescription] | None = None
        self.done: Counter[object] = Counter()
        self._begin()

    def _begin(self) -> None:
        """Some clusters have topics of level 3, which move to pages by and by."""
        if self.rng.random() < 0.5:
            self.catalog.do(SetFeatureLevel(3))
            for name in NODES[:3]:
                self.catalog.do(RegisterNode(name, {}, "", "", 3, False))
            for number in range(2):
                self.topics += 1
                self.catalog.do(CreateTopic(f"t{number}", f"{self.topics:032x}", 40, 2, {}))
            self.catalog.do(SetNodeState("n1", 1, "fenced"))
            self.catalog.do(ElectLeaders(("t0",), False))
        self.catalog.do(SetFeatureLevel(4))
        for name in NODES:
            self.register(name)
        self.controller()

    # ------------------------------------------------------------ what there is

    def topic_list(self) -> list[TopicDescription]:
        """Read once behind each command."""
        if self.topics_now is None:
            self.topics_now = self._read_topics()
        return self.topics_now

    def _read_topics(self) -> list[TopicDescription]:
        prefix = KEYS + TOPIC_PREFIX
        names = [key[len(prefix) :].decode() for key, _ in self.catalog.store.scan(prefix)]
        return [find_topic(self.catalog.draft(), name) for name in names]

    def nodes(self) -> dict[str, NodeRegistration]:
        return {node.node_id: node for node in all_nodes(self.catalog.draft())}

    def pages(self) -> list[bytes]:
        prefix = KEYS + PAGE_PREFIX
        return [key[len(prefix) :] for key, _ in self.catalog.store.scan(prefix)]

    def one(self) -> tuple[TopicDescription, PartitionDescription] | None:
        topics = self.topic_list()
        if not topics:
            return None
        topic = self.rng.choice(topics)
        return topic, self.rng.choice(topic.partitions[-3:] + topic.partitions[:3])

    def do(self, command: Command) -> Applied:
        applied = self.catalog.do(command)
        if applied.rows:
            self.topics_now = None
        assert applied.result.code not in ("INTERNAL", "INVALID_COMMAND"), applied.result
        self.done[type(command).__name__, bool(applied.result.code)] += 1
        self.past.append(command)
        self.check(command)
        return applied

    # ------------------------------------------------------------ what happens

    def step(self) -> None:
        kind = self.rng.choices(
            (
                self.start_again, self.change_state, self.controller, self.in_sync, self.in_sync,
                self.resign, self.move, self.unclean, self.topic, self.late,
            ),
            (6, 10, 12, 25, 0, 4, 6, 3, 6, 6),
        )[0]  # fmt: skip
        kind()

    def register(self, name: str, disowned: tuple[tuple[bytes, int], ...] = ()) -> None:
        storage = f"{int(name[1:]):016x}{self.disks[name]:016x}"
        clean = self.rng.random() < 0.5
        command = RegisterBroker(
            name, {}, f"r{name[1:]}", "", 4, True, storage, ("broker",), clean, disowned
        )
        self.do(command)

    def start_again(self) -> None:
        name = self.rng.choice(NODES)
        chance = self.rng.random()
        disowned: tuple[tuple[bytes, int], ...] = ()
        if chance < 0.2:
            self.disks[name] += 1
        elif chance < 0.4 and (found := self.one()):
            disowned = ((bytes.fromhex(found[0].topic_id), found[1].partition),)
        node = self.nodes().get(name)
        # A process that is dead has been missed before another disk can take its place.
        if node is not None and chance < 0.2:
            self.do(SetNodeState(name, node.broker_epoch, "fenced"))
        self.register(name, disowned)

    def change_state(self) -> None:
        node = self.nodes().get(self.rng.choice(NODES))
        if node is None:
            return
        if self.rng.random() < 0.15:
            self.do(LeaveNode(node.node_id, node.broker_epoch))
            return
        states = ("active", "active", "active", "fenced", "fenced", "draining")
        self.do(SetNodeState(node.node_id, node.broker_epoch, self.rng.choice(states)))

    def controller(self) -> None:
        """As it works: in part at times, and with a list that may have passed."""
        if self.rng.random() < 0.7:
            self.do(PageTopics(self.rng.choice((1, 50, 1000))))
        pages = self.pages()
        if self.rng.random() < 0.3:
            pages = [page for page in pages if self.rng.random() < 0.5]
        self.do(SettlePages(tuple(pages[:1000]), self.rng.random() < 0.3))
        for name in NODES:
            if self.rng.random() < 0.5:
                self.do(ForgetLost(name))

    def in_sync(self) -> None:
        found = [self.one() for _ in range(self.rng.randint(1, 4))]
        led = [each for each in found if each is not None and each[1].leader is not None]
        if not led:
            return
        nodes = self.nodes()
        leader = led[0][1].leader or ""
        changes = []
        for topic, old in led:
            wanted = {n for n in old.replicas if self.rng.random() < 0.7} | {old.leader or ""}
            stale = self.rng.random() < 0.1
            epochs = {
                name: nodes[name].broker_epoch - (self.rng.random() < 0.1) if name in nodes else 0
                for name in wanted
            }
            changes.append(
                (
                    bytes.fromhex(topic.topic_id),
                    old.partition,
                    old.leader_epoch,
                    max(0, old.partition_epoch - stale),
                    tuple(sorted(epochs.items())),
                )
            )
        epoch = nodes[leader].broker_epoch if leader in nodes else 0
        answers = self.do(ChangeInSyncMany(leader, epoch, tuple(changes))).result.payload
        now = {(t.topic_id, p.partition): p for t in self.topic_list() for p in t.partitions}
        for change, answer in zip(changes, answers, strict=True):
            if answer[0] == "UNKNOWN":
                assert not is_paging_done(self.catalog.draft())
                continue
            held = now[change[0].hex(), change[1]]
            assert answer[0] in ("DONE", "STALE", "INELIGIBLE")
            self.done[answer[0]] += 1
            assert tuple(answer[1:]) == (
                held.partition_epoch,
                held.in_sync,
                held.leader,
                held.leader_epoch,
            ) or len({c[:2] for c in changes}) < len(changes)

    def resign(self) -> None:
        found = self.one()
        if found is None or found[1].leader is None:
            return
        topic, old = found
        node = self.nodes()[old.leader or ""]
        led = (bytes.fromhex(topic.topic_id), old.partition, old.leader_epoch)
        self.do(Resign(node.node_id, node.broker_epoch, (led,)))

    def move(self) -> None:
        found = self.one()
        if found is None:
            return
        topic, old = found
        if self.rng.random() < 0.5:
            self.do(FinishMovesInPages(tuple(self.pages()[:1000])))
            return
        known = sorted(self.nodes())
        if not known:
            return
        target = tuple(self.rng.sample(known, min(len(known), self.rng.randint(1, 3))))
        move = (topic.name, topic.topic_id, old.partition, old.partition_epoch, target)
        self.do(StartMoves((move,)))

    def unclean(self) -> None:
        found = self.one()
        if found is None or not found[1].replicas:
            return
        topic, old = found
        node = self.rng.choice(old.replicas)
        self.do(ElectUnclean(topic.name, old.partition, old.partition_epoch, node))

    def topic(self) -> None:
        topics = self.topic_list()
        name = f"t{self.rng.randint(0, 3)}"
        if name not in {topic.name for topic in topics}:
            self.topics += 1
            replication = self.rng.randint(1, 3)
            config = {"unclean_leader_election": 1} if self.rng.random() < 0.2 else {}
            self.do(
                CreateReplicatedTopic(
                    name,
                    f"{self.topics:032x}",
                    self.rng.choice((1, 33)),
                    replication,
                    config,
                    (),
                    self.rng.randint(1, replication),
                )
            )
        elif self.rng.random() < 0.2:
            self.do(DeleteTopic(name))
        else:
            partitions = self.rng.choice((None, 34, 70))
            replication, minimum = self.rng.choice((None, 1, 3)), self.rng.choice((None, 1, 2))
            self.do(AlterReplicatedTopic(name, partitions, None, (), replication, minimum))

    def late(self) -> None:
        """A command that another controller, or a leader of long ago, sends once more."""
        if self.rng.random() < 0.1:
            self.do(RemoveNode(self.rng.choice(NODES)))
            return
        late = [c for c in self.past[-60:] if not isinstance(c, _ONCE)]
        if late:
            self.do(self.rng.choice(late))

    # ------------------------------------------------------------ the rules

    def check(self, command: Command) -> None:
        nodes, last = self.nodes(), self.history
        now: dict[Key, PartitionDescription] = {}
        for topic in self.topic_list():
            assert [p.partition for p in topic.partitions] == list(range(len(topic.partitions)))
            for partition in topic.partitions:
                now[topic.topic_id, partition.partition] = partition
        unclean = {t.topic_id for t in self.topic_list() if t.config}
        for key, p in now.items():
            old = last.partitions.get(key)
            if old != p:
                self.check_sets(p)
                assert (p.leader_epoch, p.partition_epoch) >= last.epochs.get(key, (0, 0))
                last.epochs[key] = (p.leader_epoch, p.partition_epoch)
            if old is not None and old != p:
                self.check_change(command, old, p, key[0] in unclean)
            self.check_disks(nodes, key, old, p)
        for node in nodes.values():
            was = self.admitted.get((node.node_id, node.broker_epoch), False)
            if node.admitted and not was and isinstance(command, SetNodeState):
                assert not any(p.leader == node.node_id for p in now.values()), "D4"
            self.admitted[node.node_id, node.broker_epoch] = node.admitted
        last.partitions = now
        if self.rng.random() < 0.2:
            self.check_counters(now)

    def check_disks(
        self,
        nodes: dict[str, NodeRegistration],
        key: Key,
        old: PartitionDescription | None,
        p: PartitionDescription,
    ) -> None:
        before = {*old.in_sync, *old.eligible} if old is not None else set[str]()
        for name in {*p.in_sync, *p.eligible} & set(nodes):
            node = nodes[name]
            if name not in before:
                self.history.storage[key, name] = node.storage_id
            then = self.history.storage[key, name]
            if node.admitted and then:
                assert node.storage_id == then, f"{name} has not the disk that {key} rests on"

    def check_sets(self, p: PartitionDescription) -> None:
        assert (p.leader is None) == (not p.in_sync)
        assert p.leader is None or p.leader in p.in_sync
        assert not set(p.in_sync) & set(p.eligible)
        assert {*p.in_sync, *p.eligible, *p.target} <= set(p.replicas)
        assert len(set(p.replicas)) == len(p.replicas)
        assert not p.eligible or len(p.in_sync) < p.min_in_sync

    def check_change(
        self, command: Command, old: PartitionDescription, p: PartitionDescription, unclean: bool
    ) -> None:
        assert p.partition_epoch > old.partition_epoch, "a change raises the epoch"
        if p.leader != old.leader:
            assert p.leader_epoch > old.leader_epoch
        elif not isinstance(command, Resign):
            assert p.leader_epoch == old.leader_epoch, "no epoch without an election"
        before = {*old.in_sync, *old.eligible}
        if isinstance(command, ChangeInSyncMany):
            assert p.leader in {*p.in_sync} or p.leader is None
            nodes = self.nodes()
            for node in set(p.in_sync) - before:
                assert nodes[node].state in ("active", "draining"), "KIP-841"
        elif isinstance(command, ElectUnclean) or unclean or not old.replicas:
            pass
        else:
            assert {*p.in_sync, *p.eligible} <= before, "only its leader lets one in"

    def check_counters(self, now: dict[Key, PartitionDescription]) -> None:
        """Of pages only: topics that are not moved yet are not counted but for replicas."""
        paged: list[tuple[bytes, PartitionDescription]] = []
        for key, data in self.catalog.store.scan(KEYS + PAGE_PREFIX):
            page = key[len(KEYS + PAGE_PREFIX) :]
            paged += [(page, p) for p in decode_page(page, decode_row(data).value).partitions]
        wanted = {
            LEADER_COUNTS: Counter(p.leader for _, p in paged if p.leader),
            MEMBER_COUNTS: Counter(n for _, p in paged for n in (*p.in_sync, *p.eligible)),
            REPLICA_COUNTS: Counter(n for p in now.values() for n in p.replicas),
        }
        for table, counts in wanted.items():
            found = {k[1:].decode(): decode_number(v) for k, v in self.catalog.store.scan(table)}
            assert {name: n for name, n in found.items() if n} == counts, table
        index = {key for key, _ in self.catalog.store.scan(NODE_PAGES)}
        assert index == {index_prefix(n) + page for page, p in paged for n in (p.replicas or ("",))}


def settled(world: World) -> None:
    """When all is calm and the controller has done its work, everything that can be led is."""
    while not world.do(PageTopics(1000)).result.payload:
        pass
    for name in NODES:
        world.register(name)
    everything = tuple(world.pages())
    for start in range(0, len(everything), 1000):
        world.do(SettlePages(everything[start : start + 1000], False))
    for name in NODES:
        world.do(ForgetLost(name))
        node = world.nodes()[name]
        assert not world.do(SetNodeState(name, node.broker_epoch, "active")).result.code, name
    for start in range(0, len(everything), 1000):
        world.do(SettlePages(everything[start : start + 1000], False))
    for topic in world.topic_list():
        for p in topic.partitions:
            assert p.leader is not None or not p.eligible
            assert all(n in NODES for n in p.in_sync)


@pytest.mark.parametrize("some", chunks(SEEDS, 10), ids=lambda some: f"{some.start}")
def test_whatever_is_asked_partitions_keep_the_rules(some: range) -> None:
    for seed in some:
        world = World(seed)
        try:
            for _ in range(STEPS):
                world.step()
            settled(world)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_simulation_does_what_it_is_for() -> None:
    """Each kind of command is both done and refused somewhere, and no member comes by accident."""
    done: Counter[object] = Counter()
    for seed in range(15):
        world = World(seed)
        for _ in range(STEPS):
            world.step()
        done.update(world.done)
    for code in ("DONE", "STALE", "INELIGIBLE"):
        assert done[code] > 5, done
    for kind in (SetNodeState, ForgetLost, ElectUnclean, AlterReplicatedTopic):
        assert done[kind.__name__, False] and done[kind.__name__, True], done
