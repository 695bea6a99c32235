"""Goal: another protocol has consumer groups, offsets and transactions by the ports of
`broker_core.api`, in a broker without the native protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lakemq.broker_core.api.errors import (
    GroupNotEmpty,
    InvalidRequest,
    LakeMQError,
    MemberFenced,
    UnknownGroup,
    UnknownMember,
)
from lakemq.broker_core.api.groups.types import (
    AssignedPartition,
    GroupCommit,
    GroupSettings,
    Heartbeat,
    MemberAssignment,
    OffsetToCommit,
)
from lakemq.broker_core.api.hooks import hookimpl
from lakemq.broker_core.api.ports import Broker, PluginContext
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.transactions.types import (
    TRANSACTION,
    CommitOutcome,
    Owner,
    StagedBatchId,
    Winner,
)
from lakemq.broker_core.api.types import ANONYMOUS, Columns, Resource, TopicPartition
from lakemq.testing import RunningBroker, running_broker

INPUT = [TopicPartition("in", 0), TopicPartition("in", 1)]
SETTINGS = GroupSettings(session_timeout_ms=1_000, heartbeat_interval_ms=200)


class Protocol:
    """A listener without a socket: what it was given is all that it knows of the broker."""

    name = "other"

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        broker.groups.configure(SETTINGS)

    async def start(self) -> None: ...

    def addresses(self) -> Sequence[str]:
        return []

    async def stop(self) -> None: ...


class Member:
    """A member whose connection hears for it."""

    def __init__(self, broker: Broker, name: str, group: str = "g") -> None:
        self.name, self.group = name, group
        self.told: MemberAssignment | None = None
        self.heard = asyncio.Event()
        self.gone: LakeMQError | None = None
        self._groups = broker.groups
        self._sequence = self._commits = 0

    def assigned(self, assignment: MemberAssignment) -> None:
        if self.told is None or assignment.revision >= self.told.revision:
            self.told = assignment
            self.heard.set()

    def ended(self, error: LakeMQError) -> None:
        self.gone = error

    @property
    def places(self) -> set[TopicPartition]:
        return {TopicPartition(*each[:2]) for each in self.told.partitions} if self.told else set()

    async def beat(self, *, joining: bool = False) -> MemberAssignment:
        self._sequence += 1
        beat = Heartbeat(
            self.name, self._sequence, joining, frozenset({"in"}), frozenset(self.places),
            self.told.revision if self.told else 0,
        )  # fmt: skip
        told = await self._groups.heartbeat(self.group, beat, principal=ANONYMOUS, listener=self)
        assert told is not None
        self.assigned(told)
        return told

    async def hears(self) -> None:
        async with asyncio.timeout(10):
            await self.heard.wait()
        self.heard.clear()

    def commit(self, offsets: dict[TopicPartition, int], epoch: int | None = None) -> GroupCommit:
        assert self.told is not None
        self._commits += 1
        return GroupCommit(
            self.group, {at: OffsetToCommit(each, "m") for at, each in offsets.items()},
            self.name, self.told.member_epoch if epoch is None else epoch, self._commits,
        )  # fmt: skip


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[tuple[RunningBroker, Broker]]:
    given: list[Protocol] = []

    @hookimpl
    def register_listeners(context: PluginContext, broker: Broker) -> list[Protocol]:
        given.append(Protocol(broker))
        return given

    plugin = SimpleNamespace(register_listeners=register_listeners)
    async with running_broker(folder, plugins={"other": plugin}) as running:
        assert "native" not in running.addresses
        yield running, given[0].broker


async def test_a_group_divides_commits_and_ends(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, broker):
        groups = broker.groups
        await broker.create_topic("in", partitions=2)
        ann, bob = Member(broker, "ann"), Member(broker, "bob")
        told = await ann.beat(joining=True)
        assert told.session_timeout_ms == told.takeover_ms == 1_000
        assert told.alone, "no other node has a copy of the group's offsets"
        assert told.heartbeat_interval_ms == 200
        assert ann.places == set(INPUT)
        await groups.commit(ann.commit({INPUT[0]: 5, INPUT[1]: 7}), principal=ANONYMOUS)

        # Bob gets one of them when Ann says that she has given it up, and not before.
        assert not (await bob.beat(joining=True)).partitions
        ann.heard.clear()
        bob.heard.clear()
        assert len((await ann.beat()).partitions) == 1
        await ann.beat()
        await bob.hears()
        assert ann.places | bob.places == set(INPUT)
        assert not ann.places & bob.places
        (given,) = bob.told.partitions if bob.told else ()
        at = TopicPartition(given.topic, given.partition)
        assert given == AssignedPartition(*at, bob.told.member_epoch, {0: 5, 1: 7}[at.partition])

        with pytest.raises(MemberFenced):  # in the epoch before, it was Ann's
            await groups.commit(bob.commit({at: 9}, epoch=told.member_epoch), principal=ANONYMOUS)
        with pytest.raises(MemberFenced):
            await groups.commit(ann.commit({at: 9}), principal=ANONYMOUS)
        await groups.commit(bob.commit({at: 8}), principal=ANONYMOUS)
        committed = await groups.committed("g", principal=ANONYMOUS)
        assert committed[at][::2] == (8, "m")
        assert committed.keys() == set(INPUT)

        (found,) = groups.describe(principal=ANONYMOUS)
        assert (found.name, found.state) == ("g", "stable")
        assert [each.member_id for each in found.members] == ["ann", "bob"]
        assert {each.committed_offset for each in found.offsets} == {8, 12 - given.committed_offset}
        assert list(groups.names()) == ["g"]
        assert groups.coordinator_of("g") == broker.node_id
        assert list(groups.coordinators()) == [broker.node_id]
        assert groups.counters.commits == 2

        await groups.leave("g", "ann", principal=ANONYMOUS)
        await bob.hears()
        assert bob.places == set(INPUT)
        with pytest.raises(UnknownMember):
            await ann.beat()

        # An operator waits for the group to be empty: here until Bob's session ends.
        reset = GroupCommit("g", {INPUT[0]: OffsetToCommit(1)})
        with pytest.raises(GroupNotEmpty):
            groups.check_reset(reset, principal=ANONYMOUS)
        with pytest.raises(GroupNotEmpty):
            await groups.delete("g", principal=ANONYMOUS)
        for _ in range(200):
            if not groups.describe(["g"], principal=ANONYMOUS)[0].members:
                break
            await asyncio.sleep(0.05)
        groups.check_reset(reset, principal=ANONYMOUS)
        await groups.commit(reset, principal=ANONYMOUS)
        assert (await groups.committed("g", principal=ANONYMOUS))[INPUT[0]].offset == 1
        await groups.delete("g", principal=ANONYMOUS)
        with pytest.raises(UnknownGroup):
            groups.describe(["g"], principal=ANONYMOUS)
        assert await groups.committed("g", principal=ANONYMOUS) == {}


async def test_nothing_is_said_to_a_connection_that_is_gone(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, broker):
        await broker.create_topic("in", partitions=1)
        ann, bob = Member(broker, "ann"), Member(broker, "bob")
        await ann.beat(joining=True)
        await bob.beat(joining=True)
        ann.heard.clear()
        bob.heard.clear()
        broker.groups.unlisten("g", "bob", ann)  # not hers: nothing
        broker.groups.unlisten("g", "ann", ann)
        await broker.alter_topic("in", partitions=4)
        await bob.hears()
        assert not ann.heard.is_set()
        assert len((await ann.beat()).partitions) == 2  # her next heartbeat tells


async def test_what_a_protocol_passes_on_is_checked(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, broker):
        groups = broker.groups
        await broker.create_topic("in", partitions=1)
        await broker.create_topic("out", partitions=1)
        beat = Heartbeat("ann", 1, True, frozenset({"in"}))
        for group, wrong in [
            ("", beat),
            ("\ud800", beat),
            ("g", replace(beat, member_id="")),
            ("g", replace(beat, member_id="m" * 65)),
            ("g", replace(beat, session_timeout_ms=5)),
            ("g", replace(beat, rebalance_timeout_ms=-1)),
        ]:
            with pytest.raises(InvalidRequest):
                await groups.heartbeat(group, wrong, principal=ANONYMOUS)
        for offset in (-2, 1 << 63):
            commit = GroupCommit("g", {INPUT[0]: OffsetToCommit(offset)})
            with pytest.raises(InvalidRequest):
                await groups.commit(commit, principal=ANONYMOUS)
            with pytest.raises(InvalidRequest):
                await _transaction(broker, [b"x"], commit)
        assert list(groups.names()) == []


async def _transaction(broker: Broker, values: list[bytes], commit: GroupCommit) -> CommitOutcome:
    """Write values and commit offsets, all or nothing."""
    owner, transactions = Owner(TRANSACTION, "job"), broker.transactions
    opened = await transactions.open(owner, principal=ANONYMOUS)
    batch_id = opened.last_batch_id + 1
    place = StagedBatchId(owner, opened.epoch, batch_id, 0, 0, 0)
    batch = encode(Columns(values))
    await transactions.stage(place, "out", 0, batch, principal=ANONYMOUS)
    answer = await transactions.commit(
        owner, opened.epoch, batch_id, [Winner(0, 0, 1)], principal=ANONYMOUS,
        effects=[broker.groups.effect(commit, principal=ANONYMOUS)],
    )  # fmt: skip
    return answer.outcome


async def test_offsets_are_committed_with_a_transaction_or_not_at_all(tmp_path: Path) -> None:
    async with started(tmp_path) as (running, broker):
        groups = broker.groups
        await broker.create_topic("in", partitions=2)
        await broker.create_topic("out", partitions=1)
        ann = Member(broker, "ann")
        epoch = (await ann.beat(joining=True)).member_epoch
        done = await _transaction(broker, [b"a", b"b"], ann.commit({INPUT[0]: 2}))
        assert done is CommitOutcome.COMMITTED
        with pytest.raises(MemberFenced):  # an epoch that is not hers
            await _transaction(broker, [b"c"], ann.commit({INPUT[0]: 3}, epoch=epoch - 1))
        assert await running.values("out") == [b"a", b"b"]
        committed = await groups.committed("g", principal=ANONYMOUS)
        assert [(at, each.offset) for at, each in committed.items()] == [(INPUT[0], 2)]
    async with started(tmp_path) as (running, broker):
        assert await running.values("out") == [b"a", b"b"]
        committed = await broker.groups.committed("g", principal=ANONYMOUS)
        assert [(at, each.offset) for at, each in committed.items()] == [(INPUT[0], 2)]
        ann = Member(broker, "ann2")
        told = await ann.beat(joining=True)
        assert [each.committed_offset for each in told.partitions] == [2, -1]
        assert told.member_epoch > epoch


async def test_rights_are_asked_for(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, broker):
        await broker.create_topic("in", partitions=1)
        asked: list[tuple[str, Resource]] = []
        authorize = broker.authorize

        def noted(principal: object, operation: object, resource: Resource, *_: object) -> None:
            asked.append((str(getattr(operation, "value", operation)), resource))
            authorize(principal, operation, resource)  # type: ignore[arg-type]

        broker.authorize = noted  # type: ignore[method-assign]
        ann = Member(broker, "ann")
        await ann.beat(joining=True)
        await broker.groups.commit(ann.commit({INPUT[0]: 1}), principal=ANONYMOUS)
        await broker.groups.committed("g", principal=ANONYMOUS)
        await broker.groups.leave("g", "ann", principal=ANONYMOUS)
        await broker.groups.commit(
            GroupCommit("g", {INPUT[0]: OffsetToCommit(0)}), principal=ANONYMOUS
        )
        await broker.groups.delete("g", principal=ANONYMOUS)
        group, topic = Resource("group", "g"), Resource("topic", "in")
        assert [(str(operation).lower(), what) for operation, what in asked] == [
            ("read", group), ("read", topic),
            ("read", group), ("describe", topic),
            ("describe", group),
            ("read", group),
            ("alter", group), ("describe", topic),
            ("delete", group),
        ]  # fmt: skip
