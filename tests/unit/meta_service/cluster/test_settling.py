"""The controller's part that settles partitions, over a catalog in memory."""

from __future__ import annotations

from typing import Any, cast

from lakemq.meta_service.api.types import NodeRegistration, PartitionDescription, TopicDescription
from lakemq.meta_service.catalog.command_codec import Command
from lakemq.meta_service.catalog.commands import SetFeatureLevel
from lakemq.meta_service.catalog.control_commands import SetNodeState
from lakemq.meta_service.catalog.moves import StartMoves
from lakemq.meta_service.catalog.nodes import decode_node, node_key
from lakemq.meta_service.catalog.pages.commands import (
    ChangeInSyncMany,
    CreateReplicatedTopic,
    ForgetLost,
    PageTopics,
    RegisterBroker,
    Resign,
    SettlePages,
)
from lakemq.meta_service.catalog.results import Result
from lakemq.meta_service.control.balance import repair, wants_repair
from lakemq.meta_service.control.settling import PREFERRED_S, Settling
from lakemq.meta_service.core.cache import Cache
from lakemq.meta_service.core.gateway import Gateway
from tests.support.meta.catalog_rig import Catalog, Stored


class Member:
    """A gateway over a catalog: every command is applied at once."""

    def __init__(self) -> None:
        self.catalog, self.cache = Catalog(), Cache()
        self.listeners: list[Any] = []
        self.proposed: list[Command] = []
        self.full: list[str] = []

    def settling(self) -> Settling:
        return Settling(cast(Gateway, self), Stored(self.catalog), lambda: self.full)

    def do(self, command: Command) -> Result:
        applied = self.catalog.do(command)
        self.cache.update(applied.rows, applied.state.revision, applied.state.applied_index)
        for listener in self.listeners:
            listener(applied.rows)
        return applied.result

    async def propose(self, command: Command) -> Result:
        self.proposed.append(command)
        return self.do(command)

    def node(self, name: str) -> NodeRegistration:
        return decode_node(node_key(name), self.catalog.value(node_key(name)) or b"")

    def state(self, name: str, state: str) -> None:
        code = self.do(SetNodeState(name, self.node(name).broker_epoch, state)).code
        assert not code

    def led(self, name: str) -> int:
        return sum(p.leader == name for n in range(3) for p in self.topic(n).partitions)

    def topic(self, number: int) -> TopicDescription:
        return self.catalog.topic(f"t{number}")


def broker(name: str, disk: int = 1, roles: tuple[str, ...] = ()) -> RegisterBroker:
    storage = f"{ord(name):016x}{disk:016x}"
    return RegisterBroker(name, {}, "", "1", 4, True, storage, roles, False, ())


def cluster(partitions: int = 40, replication: int = 2) -> Member:
    """Nodes a and b, active, and three topics."""
    member = Member()
    member.do(SetFeatureLevel(4))
    member.do(PageTopics(1))
    for name in "ab":
        member.do(broker(name))
        member.state(name, "active")
    for n in range(3):
        created = CreateReplicatedTopic(f"t{n}", f"{n:032x}", partitions, replication, {}, (), 1)
        assert not member.do(created).code
    return member


async def test_a_change_of_a_node_takes_a_command_for_a_thousand_partitions() -> None:
    member = cluster(partitions=500)
    settling = member.settling()
    settling.restart(0.0)
    await settling.step(0.0)
    assert member.proposed == [], "nothing was amiss"
    member.state("a", "fenced")
    await settling.step(1.0)
    assert [type(each) for each in member.proposed] == [SettlePages, SettlePages]
    assert member.led("a") == 0 and member.led("b") == 1500
    await settling.step(2.0)
    assert len(member.proposed) == 2, "an idle cluster writes nothing"


async def test_a_lost_disk_is_forgotten_when_nothing_rests_on_it() -> None:
    member = cluster()
    member.state("a", "fenced")
    member.do(broker("a", disk=2))
    settling = member.settling()
    settling.restart(0.0)
    assert not settling.is_settled(member.node("a"))
    await settling.step(0.0)
    assert isinstance(member.proposed[-1], ForgetLost)
    member.state("a", "active")


async def test_two_controllers_at_once_do_no_harm() -> None:
    member = cluster()
    one, other = member.settling(), member.settling()
    for settling in (one, other):
        settling.restart(0.0)
    member.state("a", "fenced")
    await one.step(0.0)
    before = [member.topic(n) for n in range(3)]
    for command in list(member.proposed):
        member.do(command)
    await other.step(0.0)
    assert [member.topic(n) for n in range(3)] == before


async def test_leadership_goes_back_in_calm_times_and_not_at_once() -> None:
    member = cluster(partitions=1)
    settling = member.settling()
    settling.restart(0.0)
    await settling.step(0.0)
    first = member.topic(0).partitions[0].replicas[0]
    epoch = member.node(first).broker_epoch

    def resign() -> None:
        led = (bytes.fromhex(member.topic(0).topic_id), 0, leader_epoch())
        assert member.do(Resign(first, epoch, (led,))).payload == 1

    def leader_epoch() -> int:
        return member.topic(0).partitions[0].leader_epoch

    def leads() -> bool:
        return member.topic(0).partitions[0].leader == first

    resign()
    await settling.step(PREFERRED_S - 1)
    assert not leads()
    await settling.step(PREFERRED_S + 1)
    assert leads()
    resign()
    await settling.step(PREFERRED_S + 2)
    assert not leads(), "it has just resigned"
    member.full = [first]
    await settling.step(2 * PREFERRED_S + 2)
    assert not leads(), "its disk is full"
    member.full = []
    await settling.step(3 * PREFERRED_S + 3)
    assert leads()


async def test_only_changed_pages_are_looked_at() -> None:
    member = cluster(partitions=33)
    settling = member.settling()
    settling.restart(0.0)
    member.state("b", "fenced")
    await settling.step(0.0)
    pages = {page for each in member.proposed for page in getattr(each, "pages", ())}
    assert len(pages) == 6
    member.do(ChangeInSyncMany("a", 99, ()))
    member.proposed.clear()
    await settling.step(0.1)
    assert member.proposed == []


# ------------------------------------------------------------ repairs


def described(replicas: tuple[str, ...], leader: str | None, wanted: int) -> TopicDescription:
    in_sync = (leader,) if leader else ()
    partition = PartitionDescription(0, leader, 0, 0, replicas, in_sync)
    return TopicDescription("t", "0" * 32, (partition,), {}, 0, wanted)


def test_a_repair_gives_what_the_topic_wants_and_moves_nothing_else() -> None:
    nodes = [NodeRegistration(name, {}) for name in "abc"]
    nodes.append(NodeRegistration("d", {}, roles=("meta",)))

    def target(topic: TopicDescription, *dead: str) -> tuple[str, ...] | None:
        moves = repair([topic], nodes, dead, {})
        return moves[0].target if moves else None

    assert target(described(("a",), "a", 3)) == ("a", "b", "c"), "d holds no replicas"
    assert target(described(("a", "b"), "a", 2)) is None
    assert target(described(("a", "b", "c"), "b", 1)) == ("b",)
    assert target(described(("b", "a"), "b", 2), "a") == ("b", "c")
    assert target(described(("b", "a"), None, 2), "a") is None, "nothing to copy from"
    assert target(described(("a",), "a", 1), "a") is None, "it leads, but it is dead"
    assert not wants_repair(
        described(("a",), "a", 1), described(("a",), "a", 1).partitions[0], {"a"}
    )


def test_a_move_to_a_node_that_holds_no_replicas_is_refused() -> None:
    member = cluster(partitions=1)
    member.do(broker("d", roles=("meta",)))
    move = ("t0", "0" * 32, 0, 0, ("d",))
    assert member.do(StartMoves((move,))).code == "INVALID_ARGUMENT"
