"""Goal: a consumer group that reads, transforms and writes in transactions has each input's output
once, whatever happens to coordinators.

Method: three simulated nodes with the real coordinator and participant
(`tests/support/cluster/simulated_coordinators`), two workers with transactional ids of their own
that take the input from each other. A seed moves leaderships, ends nodes, loses answers, repeats
calls late. At the end every input below the committed offset was written once. Rules are
taken away one at a time, and runs break.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from lakemq.broker_core.api.errors import LakeMQError, NotLeader
from lakemq.broker_core.api.groups.types import GroupCommit, OffsetToCommit
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.transactions.types import (
    CommitOutcome,
    Effect,
    Owner,
    StagedBatchId,
    Winner,
)
from lakemq.broker_core.api.types import ANONYMOUS, Columns
from lakemq.broker_core.groups import offset_effect
from lakemq.broker_core.groups.held_offsets import HeldTable
from lakemq.broker_core.groups.offset_effect import OFFSETS, OffsetsAsked
from lakemq.broker_core.transactions import owners
from lakemq.broker_core.transactions.coordinator import TransactionCoordinator
from lakemq.broker_core.transactions.owners import OwnerRuntime
from lakemq.broker_core.transactions.targets import Targets
from tests.support.cluster.simulated_coordinators import (
    INPUT,
    NAMES,
    OUTPUT,
    OUTPUTS,
    Group,
    Node,
    SimBroker,
    World,
    now_ms,
    places,
)
from tests.support.seeds import seeds
from tests.support.virtual_time import run_virtually

LIFE_S = 30.0
SEEDS = seeds(25)

pytestmark = pytest.mark.slow


class Fenced(Exception):
    """Begin again: another one acts for the id, or reads the partition."""


class Worker:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.owner = Owner("transaction", name)
        self._rng = random.Random(world.rng.random())

    async def run(self) -> None:
        while True:
            with suppress(Fenced):
                await self._session()
            await asyncio.sleep(self._rng.choice([0.01, 0.1, 0.5]))

    async def ask(self, call: Any) -> Any:
        """What `call(node)` gives at the node that answers for it; what may pass is tried again for
        a while."""
        node = self._rng.choice(NAMES)
        for _ in range(60):
            try:
                if not self.world.nodes[node].alive:
                    raise NotLeader("away")
                async with asyncio.timeout(3):
                    return await call(self.world.nodes[node])
            except (LakeMQError, TimeoutError) as error:
                if isinstance(error, LakeMQError) and not error.retriable:
                    raise Fenced(str(error)) from None
                hint = error.leader if isinstance(error, NotLeader) else ""
                node = hint or self._rng.choice(NAMES)
            await asyncio.sleep(self._rng.choice([0.005, 0.05, 0.2]))
        raise Fenced("nothing answers")

    async def _session(self) -> None:
        opened = await self.ask(lambda at: at.coordinator.open(self.owner, principal=ANONYMOUS))
        epoch, position = await self.ask(lambda at: at.group.join())
        batch_id = opened.last_batch_id
        while True:
            batch_id += 1
            count = self._rng.choice([1, 2, 3, 16])
            await self._transaction(opened.epoch, batch_id, epoch, position, count)
            position += count
            if self._rng.random() < 0.1:
                return
            await asyncio.sleep(self._rng.choice([0, 0.01, 0.1]))

    async def _transaction(
        self, owner_epoch: int, batch_id: int, member_epoch: int, position: int, count: int
    ) -> None:
        place = StagedBatchId(self.owner, owner_epoch, batch_id, 0, 0, 0)
        for number in range(count):
            value = position + number

            async def stage(at: Node, number: int = number, value: int = value) -> bool:
                return await at.coordinator.stage(
                    place._replace(number=number), OUTPUT, value % OUTPUTS,
                    encode(Columns([b"%d" % value])), principal=ANONYMOUS,
                )  # fmt: skip

            await self.ask(stage)
        offsets = {INPUT: OffsetToCommit(position + count)}
        commit = GroupCommit(Group.name, offsets, "m", member_epoch)
        effects = [Effect(OFFSETS, OffsetsAsked(commit, ANONYMOUS))]
        answer = await self.ask(
            lambda at: at.coordinator.commit(
                self.owner, owner_epoch, batch_id, [Winner(0, 0, count)], principal=ANONYMOUS,
                effects=effects,
            )
        )  # fmt: skip
        if answer.outcome is CommitOutcome.OLDER:
            raise Fenced
        self.world.counts["commits"] += 1


async def disturb(world: World) -> None:
    while not world.calm:
        await asyncio.sleep(world.rng.choice([0.05, 0.2, 0.6, 1.5]))
        third = "strike" if world.strikes else "elect"
        kind = world.rng.choice(["elect", "elect", third, "end"])
        if kind == "elect":
            world.elect(world.rng.choice(places(world)), world.rng.choice(living(world)))
        elif kind == "strike":
            await strike(world)
        elif len(living(world)) == len(NAMES):
            node = world.nodes[world.rng.choice(NAMES)]
            await node.end()
            await asyncio.sleep(world.rng.choice([0.05, 0.5, 2.0]))
            world.nodes[node.name] = Node(world, node.name)
            await world.nodes[node.name].start()


async def strike(world: World) -> None:
    """What a commit under way depends on has other leaders, again and again perhaps; then its
    coordinator, which finds work of its former leadership when it leads again."""
    found: list[tuple[str, Owner]] = []
    for _ in range(100):
        found = [(name, each) for name in living(world) for each in world.nodes[name].committing()]
        if found:
            break
        await asyncio.sleep(0.01)
    else:
        return
    name, owner = world.rng.choice(found)
    group, owners = world.nodes[name].group_place(), world.nodes[name].owner_place(owner)
    for _ in range(world.rng.choice([1, 1, 1, 10])):
        if group in world.logs:
            world.elect(group, world.rng.choice(living(world)))
        await asyncio.sleep(0.1)
    for leader in (world.rng.choice([each for each in NAMES if each != name]), name):
        if leader in living(world):
            world.elect(owners, leader)
        await asyncio.sleep(world.rng.choice([0.0, 0.3, 1.0]))


def living(world: World) -> list[str]:
    return [name for name in NAMES if world.nodes[name].alive]


async def housekeeping(world: World) -> None:
    known: set[OwnerRuntime] = set()
    ended: set[OwnerRuntime] = set()
    while True:
        await asyncio.sleep(0.1)
        assert not any(each.tasks for each in ended), "a former coordinator goes on with an owner"
        ended = {each for each in known if each.ended}
        known -= ended
        known.update(each for node in world.nodes.values() for each in node.runtimes())
        for name in living(world):
            with suppress(LakeMQError):
                await world.nodes[name].coordinator.free()


async def live(world: World) -> None:
    for name in NAMES:
        world.nodes[name] = Node(world, name)
    for node in world.nodes.values():
        await node.start()
    tasks = [world.spawn(Worker(world, f"w{number}").run()) for number in range(2)]
    tasks.append(world.spawn(housekeeping(world)))
    disturbing = world.spawn(disturb(world))
    await asyncio.sleep(LIFE_S)
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    world.calm = True
    await asyncio.gather(*tasks, return_exceptions=True)
    await disturbing
    await asyncio.sleep(30)
    check(world, await position(world))
    for node in world.nodes.values():
        await node.participant.stop()
        await node.coordinator.stop()
        await node.group.residents.stop()
    for task in list(world.tasks):
        task.cancel()


async def position(world: World) -> int:
    """Where the group stands, when all has come to rest."""
    for node in world.nodes.values():
        with suppress(LakeMQError):
            assert len(node.group.offsets.held) == 0, "offsets are held for ever"
            return (await node.group.join())[1]
    raise AssertionError("the group has no coordinator")


def check(world: World, end: int) -> None:
    written = sorted(int(value) for value in world.values(OUTPUT))
    assert written == list(range(end)), f"the group stands at {end}, written is {written}"
    for node in world.nodes.values():
        for status in node.coordinator.describe(principal=ANONYMOUS):
            assert status.state != "applying", status


def run(seed: int, monkeypatch: pytest.MonkeyPatch, *, strikes: bool = False) -> World:
    monkeypatch.setattr(offset_effect, "_now_ms", now_ms)
    monkeypatch.setattr(owners, "_rng", random.Random(seed))
    world = World(seed)
    world.strikes = strikes
    try:
        run_virtually(live(world))
    except BaseException:
        print(f"LAKEMQ_SEED={seed} repeats this")
        raise
    return world


def test_each_input_is_transformed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    totals: dict[str, int] = {}
    for seed in SEEDS:
        for name, count in run(seed, monkeypatch, strikes=seed % 2 == 1).counts.items():
            totals[name] = totals.get(name, 0) + count
    print(totals)
    if len(SEEDS) > 5:
        assert min(totals.values()) > len(SEEDS), totals


async def _nothing(*_: object) -> int:
    return 0


def _end_and_go_on(self: OwnerRuntime) -> None:
    self.ended = True
    self._applied.set()


RULES: dict[str, tuple[type, str, Any]] = {
    "what is void is deleted with the group before more is committed": (
        HeldTable, "is_stored", lambda self, held: False,
    ),
    "a decision in doubt is written over before it is called void": (
        TransactionCoordinator, "_settle", _nothing,
    ),
    "a try that comes behind a later one is refused": (
        HeldTable, "check_try", lambda self, group, commit: None,
    ),
    "who goes on with a commit looks how much of it is there": (Targets, "appended", _nothing),
    "what is prepared is stored where another node may take the group over": (
        SimBroker, "nodes", lambda self: ["this one"],
    ),
    "a former coordinator's work on an owner ends": (OwnerRuntime, "end", _end_and_go_on),
}  # fmt: skip
"""What is put in place of a method takes the rule away."""
STRIKES = tuple(RULES)[4:]
"""Rules that count where a commit loses its coordinator."""


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*RULES[rule])
    with pytest.raises(AssertionError):
        for seed in range(60):
            run(seed, monkeypatch, strikes=rule in STRIKES)
