"""Goal: nodes know of each other what they want, never less, in whatever order subscriptions,
links and lost messages come."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Callable

import pytest

from lakemq.broker_core.api.cluster.channels import Peer
from lakemq.broker_core.api.topic_filters import matches
from lakemq.plugins.mqtt.interest import exchange, others, own
from lakemq.plugins.mqtt.interest.frames import Kind, Members, Said, decode, encode, nothing
from lakemq.plugins.mqtt.interest.hashes import Hasher, HashSet, packed, unpacked_hashes
from lakemq.plugins.mqtt.interest.others import OthersInterest
from lakemq.plugins.mqtt.interest.own import OwnInterest
from lakemq.plugins.mqtt.interest.picking import Sharing
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot
from lakemq.plugins.mqtt.wire.packets import Filter, Subscribe, Unsubscribe
from tests.support.memory_channels import MemoryChannels
from tests.support.mqtt.memory_broker import MemoryBroker
from tests.support.seeds import seeds
from tests.unit.mqtt.state.test_mqtt_stored_records import Client, started, turns

HASHER = Hasher("c1")
PEER = Peer("a", 1)
FILTERS = ["a/b", "a/c", "b", "a/+", "+/b", "#", "a/#", "$x/+", "c/d/e", "c/+/e"]
NAMES = ["a/b", "a/c", "b", "$x/y", "c/d/e", "z"]


def nobody(key: tuple[str, str]) -> Members:
    return Members(0, 0)


def delivered(mine: OwnInterest, theirs: OthersInterest) -> None:
    while (message := mine.told().get("b")) is not None:
        theirs.said(PEER, decode(message))


def linked() -> tuple[OwnInterest, OthersInterest]:
    mine, theirs = OwnInterest(HASHER, nobody), OthersInterest(HASHER)
    mine.reachable("b")
    theirs.begun(PEER)
    return mine, theirs


def test_a_set_of_hashes_is_one() -> None:
    dice, found, real = random.Random(1), HashSet(), set[int]()
    for _ in range(5000):
        entry = dice.choice([dice.getrandbits(64), dice.getrandbits(4), 2**64 - 1])
        if dice.random() < 0.6:
            assert found.add(entry) == (entry not in real)
            real.add(entry)
        else:
            assert found.discard(entry) == (entry in real)
            real.discard(entry)
        assert (entry in found) == (entry in real)
    assert len(found) == len(real)
    parts = list(found.parts(100))
    assert len(parts) > 1
    assert [entry for part in parts for entry in part] == sorted(real)
    copy = HashSet()
    for part in parts:
        copy.update(part)
    copy.update(array("Q", sorted(real)[::2]))
    assert [entry for part in copy.parts(1 << 20) for entry in part] == sorted(real)
    assert len(copy) == len(real)


def test_a_message_is_read_as_it_was_said() -> None:
    said = Said(
        Kind.DELTA, 7, True, array("Q", [1, 2**64 - 1]), array("Q", [5]), ["a/+"], ["#"],
        [("g", "a/b", Members(2, 1))], True,
    )  # fmt: skip
    assert decode(encode(said)) == said
    assert unpacked_hashes(packed(array("Q", [3, 1, 3]))) == array("Q", [1, 3])


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"\x90", encode(nothing(Kind.WHOLE, 1))[:-1],
        encode(nothing(Kind.WHOLE, 1)._replace(texts_added=["a\0"])),
        encode(nothing(Kind.WHOLE, 1)._replace(groups=[("g", "t", Members(-1, 0))])),
        bytes(5 * 1024 * 1024),
    ],
    ids=["empty", "never", "short", "cut", "text", "group", "size"],
)  # fmt: skip
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(BadSnapshot):
        decode(data)


def test_what_is_not_known_counts_as_wanted() -> None:
    mine, theirs = linked()
    mine.added("a/b")
    assert theirs.who("z") == ("a",)
    assert theirs.unknown() == ["a"]
    delivered(mine, theirs)
    assert theirs.who("z") == ()
    assert theirs.who("a/b") == ("a",)
    theirs.ended(PEER)
    assert theirs.who("a/b") == ()


def test_a_filter_stays_while_another_one_has_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = OwnInterest(lambda name: 7, nobody)  # type: ignore[arg-type]
    theirs = OthersInterest(lambda name: 7)  # type: ignore[arg-type]
    mine.reachable("b")
    theirs.begun(PEER)
    for name in ("x", "y", "z"):
        mine.added(name)
    mine.removed("x")
    mine.removed("y")
    delivered(mine, theirs)
    assert theirs.who("z") == ("a",)
    mine.removed("z")
    delivered(mine, theirs)
    assert theirs.who("z") == ()


def test_a_lost_message_makes_it_unknown() -> None:
    mine, theirs = linked()
    delivered(mine, theirs)
    mine.added("a/b")
    mine.told()  # lost on the way, which the channel would have told
    mine.added("a/c")
    theirs.said(PEER, decode(mine.told()["b"]))
    assert theirs.who("a/b") == ("a",)
    assert theirs.who("z") == ("a",)
    mine.lost("b")
    delivered(mine, theirs)
    assert theirs.who("a/b") == theirs.who("a/c") == ("a",)
    assert theirs.who("z") == ()


def test_too_many_filters_are_told_as_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "WILDCARDS_MAX", 3)
    mine, theirs = linked()
    for number in range(5):
        mine.added(f"a/{number}/+")
    delivered(mine, theirs)
    assert theirs.who("z") == ("a",)
    for number in range(3):
        mine.removed(f"a/{number}/+")
    delivered(mine, theirs)
    assert theirs.who("z") == ()
    assert theirs.who("a/4/x") == ("a",)


def test_a_node_that_says_too_much_is_not_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "SHAPES_MAX", 2)
    theirs = OthersInterest(HASHER)
    theirs.begun(PEER)
    texts = ["+", "+/+", "+/+/+"]
    theirs.said(PEER, nothing(Kind.WHOLE, 1)._replace(texts_added=texts))
    assert theirs.who("z/z/z/z") == ("a",)
    theirs.said(PEER, nothing(Kind.WHOLE, 2))
    assert theirs.who("z/z/z/z") == ()
    assert theirs.sizes() == {"a": (0, 0)}


def test_members_of_groups_are_counted() -> None:
    counts = {("g", "a/b"): Members(1, 2)}
    mine = OwnInterest(HASHER, lambda key: counts.get(key, Members(0, 0)))
    theirs = OthersInterest(HASHER)
    mine.group_changed(("g", "a/b"))
    mine.told()
    mine.reachable("b")
    theirs.begun(PEER)
    delivered(mine, theirs)
    assert theirs.groups(("g", "a/b")) == {"a": Members(1, 2)}
    counts.clear()
    mine.group_changed(("g", "a/b"))
    delivered(mine, theirs)
    assert theirs.groups(("g", "a/b")) == {}


def test_a_group_that_was_empty_for_a_moment_is_told_as_such() -> None:
    """Meanwhile its node let messages pass, which others are to deliver."""
    key = ("g", "a/b")
    mine, theirs = OwnInterest(HASHER, lambda key: Members(2, 0)), OthersInterest(HASHER)
    seen = []
    theirs.on_group = lambda key: seen.append(theirs.groups(key))
    mine.reachable("b")
    theirs.begun(PEER)
    mine.group_changed(key)
    delivered(mine, theirs)
    seen.clear()
    mine.group_emptied(key)
    mine.group_changed(key)
    delivered(mine, theirs)
    assert seen == [{}, {"a": Members(2, 0)}]
    theirs.begun(Peer("a", 2))  # the process was started again
    assert seen[2:] == [{}]


def test_what_a_leader_may_leave_out() -> None:
    mine, theirs = linked()
    delivered(mine, theirs)
    before = mine.number
    mine.added("a/+")
    assert mine.grown > before, "what was asked before does not count"
    assert theirs.wants(PEER, mine.grown, ["z"]), "it does not know yet"
    delivered(mine, theirs)
    assert mine.grown == mine.number
    assert not theirs.wants(PEER, mine.number, ["z", "b"])
    assert theirs.wants(PEER, mine.number, ["z", "a/x"])
    assert theirs.wants(Peer("a", 2), 0, ["z"]), "another registration of the node"


class World:
    """Two nodes: what one wants, and what the other knows of it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.mine, self.theirs = OwnInterest(HASHER, nobody), OthersInterest(HASHER)
        self.here: set[str] = set()
        self.flying: list[bytes] = []
        self.told: set[str] = set()
        """What the other must know by now."""
        self.up, self.epoch = False, 0

    def step(self) -> None:
        number = self.dice.randrange(8)
        if number < 3:
            self.subscribe(self.dice.choice(FILTERS))
        elif number == 3:
            self.link()
        elif number < 6 and self.up:
            self.tell()
        elif self.flying:
            self.arrive()
            if not self.flying and not self.mine.telling:
                self.told = set(self.here)

    def subscribe(self, one: str) -> None:
        if one in self.here:
            self.here.discard(one)
            self.told.discard(one)
            self.mine.removed(one)
        else:
            self.here.add(one)
            self.mine.added(one)

    def link(self) -> None:
        if not self.up:
            self.epoch += 1
            self.up = True
            self.mine.reachable("b")
            self.theirs.begun(Peer("a", self.epoch))
        elif self.dice.random() < 0.3:
            self.up = False
            self.flying.clear()
            self.told.clear()
            self.mine.unreachable("b")
            self.theirs.ended(Peer("a", self.epoch))

    def tell(self) -> None:
        message = self.mine.told().get("b")
        if message is not None and self.dice.random() < 0.9:
            self.flying.append(message)
        elif message is not None:
            self.mine.lost("b")

    def arrive(self) -> None:
        self.theirs.said(Peer("a", self.epoch), decode(self.flying.pop(0)))

    def check(self) -> None:
        for one in self.told:
            for name in NAMES:
                assert not matches(one, name) or self.theirs.who(name) == ("a",), (one, name)

    def settle(self) -> None:
        if not self.up:
            self.link()
        while self.flying:
            self.arrive()
        while (message := self.mine.told().get("b")) is not None:
            self.flying.append(message)
            self.arrive()


def live(seed: int) -> None:
    """Filters come and go, links break, messages are late or lost; at no time is anything unknown
    that was told, and at the end all is known and nothing else."""
    world = World(seed)
    for _ in range(world.dice.randrange(20, 150)):
        world.step()
        world.check()
    world.settle()
    for name in NAMES:
        wanted = any(matches(one, name) for one in world.here)
        assert bool(world.theirs.who(name)) == wanted, (name, world.here)


@pytest.mark.parametrize("seed", seeds(200))
def test_seeded_lives(seed: int) -> None:
    live(seed)


@pytest.mark.parametrize("bug", ["begun", "order", "again", "number"])
def test_planted_bugs_are_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real_said, real_take = OthersInterest.said, own._Peer.take
    if bug == "begun":  # what an earlier link said stays
        monkeypatch.setattr(OthersInterest, "begun", lambda self, peer: None)
    elif bug == "order":  # changes before what they change

        def take(self: own._Peer) -> bytes | None:
            return self.changes.pop() if self.changes else real_take(self)

        monkeypatch.setattr(own._Peer, "take", take)
    elif bug == "again":  # a removal is not told
        monkeypatch.setattr(OwnInterest, "removed", lambda self, one: None)
    else:  # what is lost is not told again
        monkeypatch.setattr(OwnInterest, "lost", lambda self, node: None)
        monkeypatch.setattr(
            OthersInterest, "said",
            lambda self, peer, said: real_said(
                self, peer,
                said._replace(number=self._nodes[peer.node_id].number + 1)
                if said.kind is Kind.DELTA else said,
            ),
        )  # fmt: skip
    with pytest.raises((AssertionError, KeyError)):
        for seed in range(500):
            live(seed)


# -- engines


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0.001)


async def test_nodes_hear_each_change_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []

    def note(self: Sharing, key: tuple[str, str], now_ms: int) -> None:
        heard.append((self._node_id, self._others(key).get("n1")))

    monkeypatch.setattr(Sharing, "heard", note)
    cluster, members = MemoryChannels(), Members(1, 0)
    first, second = MemoryBroker(cluster, "n1"), MemoryBroker(cluster, "n2")
    async with (
        started(first, durable=False) as one, started(second, durable=False),
        asyncio.timeout(10),
    ):  # fmt: skip
        client = await Client(one).connect("d")
        client.send(Subscribe(1, (Filter("$share/g/s", 1),)))
        await until(lambda: heard[-1:] == [("n2", members)])
        client.send(Unsubscribe(2, ("$share/g/s",)))
        client.send(Subscribe(3, (Filter("$share/g/s", 1),)))
        await until(lambda: heard[-2:] == [("n2", None), ("n2", members)])
    assert ("n1", None) in heard


async def test_nodes_tell_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PAUSE_S", 0.0)
    cluster = MemoryChannels()
    first, second = MemoryBroker(cluster, "n1"), MemoryBroker(cluster, "n2")
    async with started(first, durable=False) as one, asyncio.timeout(10):
        client = await Client(one).connect("d")
        client.send(Subscribe(1, (Filter("a/+", 0), Filter("x", 1), Filter("$share/g/s", 1))))
        await turns()
        assert not one.interest.counts, "a node alone counts nothing"
        async with started(second, durable=False) as two:
            wanted = two.interest.others
            await until(lambda: bool(wanted.sizes()) and not wanted.unknown())
            assert [wanted.who(name) for name in ("a/b", "x", "s", "y")] == [
                ("n1",), ("n1",), ("n1",), ()
            ]  # fmt: skip
            assert wanted.groups(("g", "s")) == {"n1": Members(1, 0)}
            client.send(Unsubscribe(2, ("a/+",)))
            client.send(Subscribe(3, (Filter("y", 0),)))
            await until(lambda: wanted.who("y") == ("n1",))
            assert wanted.who("a/b") == ()
            cluster.cut("n1", "n2")
            assert wanted.who("y") == ()
            cluster.mend("n1", "n2")
            await until(lambda: wanted.who("y") == ("n1",) and not wanted.unknown())
            cluster.ends["mqtt.interest"]["n1"].send("n2", b"nonsense")
            await turns()
            assert wanted.unknown() == ["n1"]
