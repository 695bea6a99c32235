"""Goal: a session that leaves a hub leaves nothing there, and one that comes is what it was.

Method: hubs without nodes. `tests/simulation/mqtt` has the way between them.
"""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.types import ANONYMOUS
from lakemq.plugins.mqtt.homes import moving
from lakemq.plugins.mqtt.homes.catching_up import CatchUp
from lakemq.plugins.mqtt.homes.frames import Asked
from lakemq.plugins.mqtt.homes.moving import Arriving, OwnedSessions
from lakemq.plugins.mqtt.homes.table import Known
from lakemq.plugins.mqtt.session.connecting import claim_refused, claimed
from lakemq.plugins.mqtt.state.snapshots import read_session
from lakemq.plugins.mqtt.wire.messages import Message, Place
from lakemq.plugins.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    Connack,
    Connect,
    Disconnect,
    Filter,
    Properties,
    Publish,
    Subscribe,
    Will,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench, Device

KEPT = Properties(session_expiry_s=100)
NOW = Bench().now_ms


def bench() -> Bench:
    found = Bench(durable=True)
    found.hub.ended = {}
    return found


def connect(
    node: Bench, client_id: str, epoch: int, *, will: Will | None = None, kept: bool = True
) -> Device:
    device = ask(node, client_id, will=will, kept=kept)
    claimed(device.connection, epoch, False, NOW)
    keep(node)
    return device


def ask(node: Bench, client_id: str, *, will: Will | None = None, kept: bool = True) -> Device:
    device = node.dial(V5)
    properties = KEPT if kept else NO_PROPERTIES
    device.send(Connect(client_id, V5, False, 0, None, None, will, properties))
    device.connection.authenticated(ANONYMOUS, NOW)
    assert node.hub.outbox.claims.pop() is device.connection
    return device


def keep(node: Bench) -> None:
    ledger = node.hub.ledger
    assert ledger is not None
    while ledger.due:
        rows = [moving.saved(node.hub, each, 1) for each in ledger.begin().client_ids]
        alive = {one.client_id for one in rows if one is not None and one.state is not None}
        ledger.done(alive, 0, NOW)


def take(node: Bench, client_id: str, state: bytes, epoch: int, **options: bool) -> list[int]:
    done: list[int] = []
    arriving = Arriving(
        read_session(client_id, state), epoch, options.get("unclean", False),
        options.get("ends", False),
    )  # fmt: skip
    assert moving.take_over(node.hub, [arriving], done.append, {}, NOW) == []
    node.load()
    return done


def subscribe(node: Bench, device: Device, *filters: str) -> None:
    device.send(Subscribe(1, tuple(Filter(each, 1) for each in filters)))
    keep(node)
    device.received()


def test_a_session_goes_to_another_hub() -> None:
    here, there = bench(), bench()
    device = connect(here, "x", 1)
    subscribe(here, device, "a/#", "b")
    session = moving.part(here.hub, Asked("x", 1, False), NOW)
    assert session is not None
    assert [type(one) for one in device.received()] == [Disconnect]
    state = moving.hand_over(here.hub, Asked("x", 1, False), session, NOW)
    assert state
    assert not here.hub.sessions
    assert not here.hub.index
    assert here.hub.ended == {}
    assert not here.hub.ledger.due  # type: ignore[union-attr]
    assert take(there, "x", state, 2) == [NOW]
    back = ask(there, "x")
    claimed(back.connection, 2, True, NOW)
    keep(there)
    (connack,) = back.received()
    assert isinstance(connack, Connack)
    assert connack.session_present
    assert there.hub.index.count == 2
    assert there.hub.sessions["x"].epoch == 2


def test_what_a_hub_does_not_have() -> None:
    node = bench()
    assert moving.part(node.hub, Asked("x", 1, False), NOW) is None
    assert moving.hand_over(node.hub, Asked("x", 1, False), None, NOW) is None
    connect(node, "x", 5)
    assert moving.part(node.hub, Asked("x", 4, False), NOW) is None  # it was granted again since


@pytest.mark.parametrize("ends", [False, True])
def test_a_session_that_ends_is_not_handed_over(ends: bool) -> None:
    """It ends with its connection, or its client wants a clean start."""
    node = bench()
    device = connect(node, "x", 1, kept=ends, will=Will("w", b"gone", 1, False, NO_PROPERTIES))
    assert moving.part(node.hub, Asked("x", 1, ends), NOW) is None
    assert moving.hand_over(node.hub, Asked("x", 1, ends), None, NOW) == b""
    assert device.closed
    assert node.hub.counters.wills_published == 1
    assert node.hub.ended == {}
    keep(node)


def test_the_will_of_a_client_whose_node_died() -> None:
    here, there = bench(), bench()
    will = Will("w", b"gone", 1, False, NO_PROPERTIES)
    for kept in (True, False):
        connect(here, "x", 1, will=will, kept=kept)
        row = moving.saved(here.hub, "x", 1)
        assert row is not None
        assert row.urgent
        assert row.state is not None
        take(there, "x", row.state, 2, unclean=True)
        assert ("x" in there.hub.sessions) is kept
        take(bench(), "x", row.state, 2, unclean=True, ends=True)
    assert there.hub.counters.wills_published == 2
    assert there.hub.ended == {"x": 2}


def test_a_lost_session_says_nothing_more() -> None:
    node = bench()
    device = connect(node, "x", 1, will=Will("w", b"gone", 1, False, NO_PROPERTIES))
    moving.lose(node.hub, node.hub.sessions["x"], NOW)
    assert device.closed
    assert not node.hub.sessions
    assert node.hub.counters.wills_published == 0
    assert node.hub.ended == {}


def test_a_claim_that_is_not_granted() -> None:
    node = bench()
    device = ask(node, "x")
    claim_refused(device.connection, Reason.QUOTA_EXCEEDED, "too many sessions", NOW)
    (connack,) = device.received()
    assert isinstance(connack, Connack)
    assert connack.code == Reason.QUOTA_EXCEEDED
    claimed(device.connection, 1, False, NOW)
    assert not node.hub.sessions


def test_what_homes_make_of_sessions_that_a_node_announced() -> None:
    """Also when two homes have heard of one, and when it was claimed again meanwhile."""
    node = bench()
    for client_id in ("x", "y", "z"):
        connect(node, client_id, 0)
    known = [Known("x", 0, 5), Known("y", 0, 0), Known("z", 0, 6), Known("gone", 0, 7)]
    assert moving.left_behind(node.hub, known, NOW) == 1
    assert {one.client_id: one.epoch for one in node.hub.sessions.values()} == {"x": 5, "z": 6}
    assert node.hub.ledger.due  # type: ignore[union-attr]
    later = [Known("x", 0, 4), Known("z", 0, 8), Known("x", 3, 0)]
    assert moving.left_behind(node.hub, later, NOW) == 0
    assert {one.client_id: one.epoch for one in node.hub.sessions.values()} == {"x": 5, "z": 8}


def test_pages_of_what_a_node_owns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "PAGE_ROWS", 3)
    node = bench()
    connect(node, "early", 1)
    found = OwnedSessions(node.hub, lambda client_id: len(client_id) % 2)
    devices = [connect(node, f"c{n}", n + 2) for n in range(9)]
    pages = found.pages(0)
    assert pages == 4
    rows = [one for page in range(pages) for one in found.page(0, page, pages)]
    assert sorted(one.client_id for one in rows) == [f"c{n}" for n in range(9)]
    assert [one.client_id for one in found.page(1, 0, 1)] == ["early"]
    moving.lose(node.hub, node.hub.sessions["c3"], NOW)
    node.hub.session_table.end(node.hub.sessions["c4"], NOW)
    assert len(found.page(0, 0, 1)) == 7
    assert devices[3].closed


def test_a_publish_comes_once_to_a_session_that_moves() -> None:
    """It was delivered here, and is behind what the other hub has heard."""
    here, there = bench(), bench()
    device = connect(here, "x", 1)
    subscribe(here, device, "a")
    sender = connect(here, "sender", 1)
    sender.send(Publish("a", b"1", 1, packet_id=1))
    here.store()
    assert len(device.publishes()) == 1
    (batch,) = here.log["mqtt"]
    asked = Asked("x", 1, False)
    state = moving.hand_over(here.hub, asked, moving.part(here.hub, asked, NOW), NOW)
    assert state
    there.hub.histories.clear()
    done: list[int] = []
    arriving = Arriving(read_session("x", state), 2, False, False)
    moving.take_over(there.hub, [arriving], done.append, {}, NOW)
    (finish,) = [there.begin_read()]
    assert finish is not None
    finish()
    assert done == []  # this hub has not heard of it
    there.commit(batch)
    there.load()
    assert done == [NOW]
    assert there.hub.sessions["x"].outbound.load == 1  # not acknowledged yet, and not twice


def test_who_gets_a_session_finds_what_was_being_stored_when_it_left() -> None:
    node = bench()
    device = connect(node, "d", 5)
    session = node.hub.sessions["d"]
    session.incoming[1] = device.connection
    asked = Asked("d", 5, ends=False)
    assert moving.part(node.hub, asked, NOW) is session
    assert moving.hand_over(node.hub, asked, session, NOW) is None
    assert node.hub.sessions == {}


def message(offset: int) -> Message:
    return Message("a/1", b"%d" % offset, 1, False, NOW, place=Place("t", 0, offset))


def taken(device: Device) -> list[int]:
    return [int(one.payload) for one in device.received() if isinstance(one, Publish)]


@pytest.mark.parametrize("asked", [True, False])
def test_what_a_member_of_a_group_was_given_goes_to_others_unless_it_is_handed_over(
    asked: bool,
) -> None:
    """Its node was cut off, and gave it what no home has heard of. Seed 37 of the simulation of
    whole engines was the first to show it."""
    node = bench()
    device = connect(node, "x", 1)
    subscribe(node, device, "$share/g/a/#")
    node.hub.route(message(1), NOW)
    other = connect(node, "y", 1)
    subscribe(node, other, "$share/g/a/#")
    session = node.hub.sessions["x"]
    if asked:
        assert moving.hand_over(node.hub, Asked("x", 1, False), session, NOW)
    else:
        moving.lose(node.hub, session, NOW)
    assert taken(other) == ([] if asked else [1])


def test_what_a_member_was_given_on_its_way_goes_to_others_too() -> None:
    """It comes from another node, gets what came meanwhile, and is lost here."""
    here, there = bench(), bench()
    subscribe(here, connect(here, "x", 1), "$share/g/a/#")
    state = moving.hand_over(here.hub, Asked("x", 1, False), here.hub.sessions["x"], NOW)
    assert state
    arriving = Arriving(read_session("x", state), 2, unclean=False, ends=False)
    moving.take_over(there.hub, [arriving], lambda now_ms: None, {}, NOW)
    (catch_up,) = there.hub.histories
    assert isinstance(catch_up, CatchUp)
    catch_up.deliver(message(1), NOW)
    catch_up.arrived(there.hub, NOW)
    subscribe(there, connect(there, "y", 1), "$share/g/a/#")
    moving.lose(there.hub, there.hub.sessions["x"], NOW)
    (given,) = there.hub.sessions["y"].outbound.unfinished()
    assert given.place == message(1).place


def test_a_state_that_no_message_holds_is_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    node = bench()
    subscribe(node, connect(node, "x", 1), "$share/g/a/#")
    node.hub.route(message(1), NOW)
    other = connect(node, "y", 1)
    subscribe(node, other, "$share/g/a/#")
    monkeypatch.setattr(moving, "STATE_MAX_BYTES", 10)
    session = node.hub.sessions["x"]
    assert moving.hand_over(node.hub, Asked("x", 1, False), session, NOW) is None
    assert taken(other) == [1]


def test_who_has_just_come_had_no_part_in_what_came_before() -> None:
    """A message fell to a node that is gone by now; a member that came here since then does not
    stand for the one that comes now. Seed 17 of the simulation of whole engines."""
    here, there = bench(), bench()
    subscribe(here, connect(here, "x", 1), "$share/g/a/#")
    row = moving.saved(here.hub, "x", 1)
    assert row is not None
    assert row.state is not None
    subscribe(there, connect(there, "y", 1), "$share/g/a/#")
    there.hub.has_had = lambda group, place: place.offset >= 2
    arriving = Arriving(read_session("x", row.state), 2, unclean=True, ends=False)
    moving.take_over(there.hub, [arriving], lambda now_ms: None, {}, NOW)
    (catch_up,) = there.hub.histories
    assert isinstance(catch_up, CatchUp)
    for offset in range(4):
        catch_up.deliver(message(offset), NOW)
    places = [one.place for one in there.hub.sessions["x"].outbound.unfinished()]
    assert places == [message(0).place, message(1).place]
