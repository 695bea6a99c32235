"""Goal: at a rebalance no record is handled by two members after a commit.

Method: the pure coordinator and the pure members of one group over a network that delays, loses,
repeats and reorders, driven by one seed: members crash, pause, join, leave for good or for a while,
commit late; the coordinator stands still or restarts without its memory of members, or another
node takes over, which members hear of late or not at all; topics grow.
After every event: one owner a partition. At every record handed out: nobody else has committed it.
When the faults end, the group settles and every record is handled and committed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from lakemq.broker_core.api.errors import InstanceInUse, LakeMQError, MemberFenced, UnknownMember
from lakemq.broker_core.api.groups.types import Heartbeat
from lakemq.broker_core.api.types import TopicPartition
from lakemq.broker_core.groups.coordinator import (
    FIRST_EPOCH_BITS,
    Assignment,
    ConsumerGroup,
    GroupCoordinator,
    Tells,
)
from lakemq.plugins.native.sdk.group.membership import Beat, Grant, Membership
from tests.support.seeds import chunks, seeds

SEEDS = seeds(20)
CHUNK = 20
RECORDS = 400
FAULTS = ("crash", "pause", "join", "leave", "away", "stall", "restart", "failover", "grow")
SESSION_MS, REBALANCE_MS, BEAT_MS = 3000, 5000, 500


class World:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = 0
        self.faults = True
        self.takeover_ms = SESSION_MS
        """How long a new coordinator waits for members of the former one."""
        self.forgets_alone = False
        """Members are not told that a coordinator is alone."""
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.broker = Broker(self)
        self.clients: list[Client] = []
        self.committed_by: dict[TopicPartition, dict[int, str]] = {}
        """Record -> incarnation that committed it first."""
        self.handled = 0
        self.seen: set[str] = set()
        """Kinds of things that happened: a simulation in which nothing happens proves nothing."""

    def at(self, delay: int, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, act))

    def send(self, act: Callable[[], None]) -> None:
        """Over the network: late, lost, twice, overtaken."""
        dice = self.dice
        if not self.faults:
            self.at(dice.randrange(1, 20), act)
            return
        if dice.random() < 0.03:
            self.seen.add("lost message")
            return
        for _ in range(2 if dice.random() < 0.03 else 1):
            late = dice.random() < 0.1
            self.at(dice.randrange(1, 4000 if late else 60), act)

    def run(self, until: int) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()
            self.broker.check()
        self.now = until


class Broker:
    """Drives the coordinator: what the gRPC edge does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.partitions = {"a": 4, "b": 3}
        self.committed: dict[TopicPartition, int] = {}
        self.highest_epoch = 0
        self.busy_until = 0
        self.life = 0
        self.leader_epoch = 0
        self.shared = False
        """Whether other nodes have copies: only then another one coordinates, and waits."""
        self.coordinator: GroupCoordinator
        self.group: ConsumerGroup
        self.restart()

    def restart(self, takeover_until_ms: int | None = None) -> None:
        self.life += 1
        first_epoch = max(self.highest_epoch, self.leader_epoch << FIRST_EPOCH_BITS)
        self.coordinator = GroupCoordinator(groups_max=10, members_max=50)
        self.group = self.coordinator.group("g", first_epoch, takeover_until_ms)

    def fail_over(self, gap_ms: int) -> None:
        """Another node coordinates the group, from `gap_ms` on; one that had no copy until now
        perhaps, of which no member has heard."""
        self.shared = True
        self.leader_epoch += 1
        self.busy_until = self.world.now + gap_ms
        self.restart(self.busy_until + self.world.takeover_ms)

    def check(self) -> None:
        owned = [at for member in self.group.members.values() for at in member.owned]
        assert len(owned) == len(set(owned)), "a partition has two owners"

    def receive(self, act: Callable[[], None]) -> None:
        """Over the network to the broker, which may be busy. What was sent to an earlier life does
        not reach a later one: its connections broke."""
        life = self.life

        def alive() -> None:
            if self.life == life:
                act()

        self.world.send(lambda: self.world.at(max(0, self.busy_until - self.world.now), alive))

    def answer(self, act: Callable[[], None]) -> None:
        """On a member's stream, which ends with this life."""
        life = self.life

        def alive() -> None:
            if self.life == life:
                act()

        self.world.send(alive)

    def heartbeat(self, client: Client, beat: Beat) -> None:
        try:
            tells = self.coordinator.heartbeat(
                self.group,
                Heartbeat(
                    beat.member_id, beat.sequence, beat.joining, client.topics, beat.holds,
                    beat.revision, client.instance, SESSION_MS, REBALANCE_MS, beat.claims,
                ),
                {name: self.partitions[name] for name in client.topics},
                self.world.now,
            )  # fmt: skip
        except LakeMQError as error:
            self.world.seen.add(type(error).__name__)
            refusal = error
            self.answer(lambda: client.refused(beat.member_id, refusal))
            return
        if beat.claims and beat.member_id in tells and not beat.joining:
            held = self.group.members[beat.member_id].owned
            if any(epoch <= self.group.first_epoch for epoch in held.values()):
                self.world.seen.add("came back")
        self.tell(tells)

    def tell(self, tells: Tells) -> None:
        for member_id, assignment in tells.items():
            grants = {
                at: Grant(epoch, self.committed.get(at, -1))
                for at, epoch in assignment.partitions.items()
            }
            for client in self.world.clients:
                if client.membership.member_id == member_id:
                    self._tell(client, member_id, assignment, grants)

    def _tell(
        self,
        client: Client,
        member_id: str,
        told: Assignment,
        grants: dict[TopicPartition, Grant],
    ) -> None:
        alone = not self.shared and not self.world.forgets_alone
        self.answer(
            lambda: client.told(member_id, told.epoch, told.revision, told.sequence, grants, alone)
        )

    def commit(
        self,
        member_id: str,
        epoch: int,
        sequence: int,
        offsets: dict[TopicPartition, int],
        answer: Callable[[bool], None],
    ) -> None:
        try:
            self.group.check_commit(member_id, epoch, sequence, offsets, self.world.now)
        except LakeMQError as error:
            self.world.seen.add(f"commit {type(error).__name__}")
            self.world.send(lambda: answer(False))
            return
        self.highest_epoch = max(self.highest_epoch, epoch)
        for at, offset in offsets.items():
            assert offset >= self.committed.get(at, 0), f"{at} is committed backwards"
            by = self.world.committed_by.setdefault(at, {})
            for record in range(offset):
                by.setdefault(record, member_id)
            self.committed[at] = offset
        self.world.send(lambda: answer(True))

    def leave(self, member_id: str, away: bool) -> None:
        self.tell(self.group.leave(member_id, self.world.now, away=away))

    def tick(self) -> None:
        if self.world.now >= self.busy_until:
            for tells in self.coordinator.tick(self.partitions, self.world.now).values():
                self.tell(tells)
        self.world.at(200, self.tick)


class Client:
    """Drives a membership: what the SDK's consumer does."""

    def __init__(self, world: World, topics: Iterable[str], instance: str = "") -> None:
        self.world = world
        self.topics = frozenset(topics)
        self.instance = instance
        self.membership = Membership(self._new_id(), 2 * SESSION_MS)
        self.membership.limit_lease(SESSION_MS)
        self.positions: dict[TopicPartition, int] = {}
        self.commits = 0
        self.paused_until = 0
        self.unheard_until = 0
        """What it sends is lost until then."""
        self.gone = False
        self.waits_for_commit = False
        world.clients.append(self)
        self.beat_loop()
        self.poll_loop()

    def _new_id(self) -> str:
        return f"{self.world.dice.getrandbits(64):016x}"

    def awake(self, act: Callable[..., None], *values: Any) -> bool:
        """True: act now. While paused, `act` is called again afterwards."""
        if self.gone:
            return False
        if self.world.now < self.paused_until:
            self.world.at(self.paused_until - self.world.now, lambda: act(*values))
            return False
        return True

    def beat_loop(self) -> None:
        if self.awake(self.beat_loop):
            self.beat()
            self.world.at(BEAT_MS, self.beat_loop)

    def beat(self) -> None:
        broker = self.world.broker
        for old in self.membership.abandoned:
            broker.receive(partial(broker.leave, old, False))
        self.membership.abandoned.clear()
        beat = self.membership.beat(self.world.now)
        if self.world.now < self.unheard_until:
            return
        broker.receive(lambda: broker.heartbeat(self, beat))

    def told(self, *values: Any) -> None:
        if self.awake(self.told, *values):
            self.membership.told(*values)

    def refused(self, member_id: str, error: LakeMQError) -> None:
        if self.awake(self.refused, member_id, error) and not isinstance(error, InstanceInUse):
            assert isinstance(error, UnknownMember | MemberFenced)
            self.membership.expelled(
                member_id, self._new_id(), known=isinstance(error, MemberFenced)
            )

    def poll_loop(self) -> None:
        if not self.awake(self.poll_loop):
            return
        self.change()
        slow = self.world.now < self.unheard_until and self.world.dice.random() < 0.9
        if not (self.waits_for_commit or slow):
            for _ in range(1 if self.world.faults else 20):
                self.hand_out()
            if self.world.dice.random() < 0.08:
                self.commit(lambda _: None)
        self.world.at(self.world.dice.randrange(20, 150), self.poll_loop)

    def change(self) -> None:
        member, dice = self.membership, self.world.dice
        changes = member.changes()
        if changes.lost:
            self.world.seen.add("lost partitions")
            for at in changes.lost:
                self.positions.pop(at, None)
            member.dropped()
        if changes.revoked and not self.waits_for_commit:
            self.world.seen.add("revoked partitions")
            if dice.random() < 0.5:
                self.waits_for_commit = True
                self.commit(self._committed)
                self.world.at(dice.choice([300, 9000]), lambda: self._committed(False))
            else:
                self._committed(True)
        assigned = member.changes().assigned
        for at, grant in assigned.items():
            self.positions[at] = max(0, grant.committed)
        member.taken(assigned)

    def _committed(self, _: bool) -> None:
        self.waits_for_commit = False
        if not self.gone:
            revoked = self.membership.changes().revoked
            for at in revoked:
                self.positions.pop(at, None)
            self.membership.released(revoked)

    def commit(self, answer: Callable[[bool], None]) -> None:
        member, broker = self.membership, self.world.broker
        offsets = {at: self.positions[at] for at in member.held if at in self.positions}
        self.commits += 1
        if not offsets or not member.joined or self.world.now < self.unheard_until:
            answer(False)
            return
        call = (member.member_id, member.epoch, self.commits, offsets, answer)
        broker.receive(lambda: broker.commit(*call))

    def hand_out(self) -> None:
        ready = [at for at, position in self.positions.items() if position < RECORDS]
        if not ready:
            return
        at = self.world.dice.choice(sorted(ready))
        if not self.membership.may_hand_out(at, self.world.now):
            return
        record = self.positions[at]
        by = self.world.committed_by.get(at, {}).get(record)
        assert by in (None, self.membership.member_id), (
            f"{at} record {record} is handled by {self.membership.member_id} "
            f"at {self.world.now} ms and was committed by {by}"
        )
        self.positions[at] += 1
        self.world.handled += 1

    def leave(self, away: bool) -> None:
        self.gone = True
        broker, member_id = self.world.broker, self.membership.member_id
        broker.receive(lambda: broker.leave(member_id, away))


def new_client(world: World, instance: str | None = None) -> Client:
    if instance is None:
        instance = world.dice.choice(["", "", "i1", "i2"])
    if any(each.instance == instance and not each.gone for each in world.clients):
        instance = ""  # two living processes never share one
    return Client(world, world.dice.choice([("a",), ("a", "b"), ("a", "b")]), instance)


def begin(world: World, instance: str) -> None:
    new_client(world, instance)


def take_over(world: World, living: list[Client]) -> None:
    world.broker.fail_over(world.dice.choice([20, 500, 3000]))
    for each in living:
        if world.dice.random() < 0.5:  # the others' streams stay open, and say nothing any more
            each.membership.disconnected()
        elif world.dice.random() < 0.5:
            each.unheard_until = world.broker.busy_until + world.dice.randrange(4000)


def start_again(world: World, living: list[Client]) -> None:
    if world.broker.shared:
        take_over(world, living)  # it leads in a new epoch, and waits
    elif not any(world.now < each.paused_until for each in living):
        # A process that is frozen while the broker restarts does not see its stream break: the
        # one case that is not covered, and docs/formats/native.md says so.
        world.broker.restart()
        for each in living:  # their streams break before anybody can join again
            each.membership.disconnected()


def end(world: World, victim: Client, kind: str) -> None:
    """Of a member's process; another one comes in its place."""
    dice = world.dice
    if kind == "crash":
        victim.gone = True
    else:
        victim.leave(kind == "away")
    back = victim.instance if dice.random() < 0.7 else ""
    world.at(dice.randrange(10, 3000), lambda: begin(world, back))


def fault(world: World) -> None:
    dice = world.dice
    living = [each for each in world.clients if not each.gone]
    victim = dice.choice(living) if living else None
    kind = dice.choice(FAULTS)
    world.seen.add(kind)
    if kind == "join" and len(living) < 5:
        new_client(world)
    elif kind == "stall":
        world.broker.busy_until = world.now + dice.randrange(100, 8000)
    elif kind == "restart":
        start_again(world, living)
    elif kind == "failover":
        take_over(world, living)
    elif kind == "grow" and world.broker.partitions["a"] < 7:
        world.broker.partitions["a"] += 1
    elif victim is not None and kind == "pause":
        victim.paused_until = world.now + dice.randrange(100, 9000)
    elif victim is not None and kind in ("crash", "leave", "away"):
        end(world, victim, kind)
    if world.faults:
        world.at(dice.randrange(100, 3000), lambda: fault(world))


def settled(world: World) -> None:
    group, living = world.broker.group, [each for each in world.clients if not each.gone]
    assert group.state == "stable"
    assert set(group.members) == {each.membership.member_id for each in living}
    held = sorted(at for each in living for at in each.membership.held)
    wanted = [
        TopicPartition(topic, number)
        for topic, count in sorted(world.broker.partitions.items())
        for number in range(count)
        if any(topic in each.topics for each in living)
    ]
    assert held == wanted
    assert {at: world.broker.committed.get(at) for at in wanted} == dict.fromkeys(wanted, RECORDS)


def simulate(seed: int, takeover_ms: int = SESSION_MS, *, forgets_alone: bool = False) -> World:
    world = World(seed)
    world.takeover_ms = takeover_ms
    world.forgets_alone = forgets_alone
    for _ in range(3):
        new_client(world)
    world.broker.tick()
    world.at(500, lambda: fault(world))
    world.run(40_000)
    world.faults = False
    world.broker.busy_until = 0
    for each in world.clients:
        each.paused_until = each.unheard_until = 0
    if all(each.gone for each in world.clients):
        Client(world, ("a", "b"))
    world.run(80_000)
    settled(world)
    return world


@pytest.mark.parametrize("several", chunks(SEEDS, CHUNK), ids=lambda several: str(several.start))
def test_no_record_is_handled_by_two_members_after_a_commit(several: range) -> None:
    seen: set[str] = set()
    for seed in several:
        try:
            world = simulate(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert world.handled > RECORDS
        seen |= world.seen
    assert len(several) < CHUNK or seen >= {
        "lost message",
        "lost partitions",
        "revoked partitions",
        "InstanceInUse",
        "MemberFenced",
        "UnknownMember",
        "came back",
        "commit MemberFenced",
        "commit Unavailable",
        "commit UnknownMember",
    }


def test_a_coordinator_that_does_not_wait_for_members_is_noticed() -> None:
    """The rule is what keeps the promise: without it runs break."""

    def breaks(seed: int) -> bool:
        try:
            simulate(seed, takeover_ms=0)
        except AssertionError:
            return True
        return False

    assert any(map(breaks, range(20)))


def test_what_a_coordinator_gave_that_is_alone_is_not_claimed() -> None:
    """It is started again and gives the partition to another member at once; then another node
    takes over, which waits for members, and hears the first one only. Seeds 897 and 1960 did."""
    place = TopicPartition("a", 0)

    def told(member: Membership, tells: Tells, *, alone: bool) -> None:
        one = tells[member.member_id]
        given = {at: Grant(epoch, -1) for at, epoch in one.partitions.items()}
        member.told(member.member_id, one.epoch, one.revision, one.sequence, given, alone)
        member.taken(member.changes().assigned)

    def heard(group: ConsumerGroup, beat: Beat, now_ms: int) -> Tells:
        return group.heartbeat(
            Heartbeat(
                beat.member_id, beat.sequence, beat.joining, frozenset({"a"}), beat.holds,
                beat.revision, "", SESSION_MS, REBALANCE_MS, beat.claims,
            ),
            {"a": 1}, now_ms,
        )  # fmt: skip

    first, second = Membership("first", SESSION_MS), Membership("second", SESSION_MS)
    group = ConsumerGroup("g")
    told(first, heard(group, first.beat(0), 0), alone=True)
    assert first.may_hand_out(place, 10)
    again = ConsumerGroup("g", 1 << FIRST_EPOCH_BITS)  # the same node's, which waits for nobody
    told(second, heard(again, second.beat(100), 100), alone=True)
    assert second.may_hand_out(place, 110)
    other = ConsumerGroup("g", 2 << FIRST_EPOCH_BITS, 200 + SESSION_MS)
    with pytest.raises(UnknownMember):
        heard(other, first.beat(200), 200)

    # One that has heard of a second node with a copy may come back to that.
    told(second, heard(again, second.beat(150), 150), alone=False)
    assert heard(other, second.beat(200), 200)["second"].partitions == {
        place: second.held[place].epoch
    }
