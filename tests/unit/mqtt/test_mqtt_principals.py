"""Goal: what one principal has on a node, no other one takes away: neither its sessions, by knowing
a client id, nor the room that all share."""

from __future__ import annotations

import pytest

from broker_core.api.types import ANONYMOUS, Principal
from plugins.mqtt.hub import Limits
from plugins.mqtt.packets import (
    V5,
    V31,
    V311,
    Connack,
    Connect,
    Filter,
    Properties,
    Publish,
    Subscribe,
)
from plugins.mqtt.reasons import Reason
from tests.support.mqtt_bench import Bench
from tests.support.mqtt_crash import CrashBench

ALICE, BOB = Principal("alice"), Principal("bob")
HOUR = Properties(session_expiry_s=3600)
versions = pytest.mark.parametrize("version", [V31, V311, V5])


def refused(bench: Bench, client_id: str, principal: Principal, version: int, clean: bool) -> int:
    """Code of the CONNACK that ends the connection."""
    device = bench.dial(version)
    properties = HOUR if version == V5 else Properties()
    device.send(Connect(client_id, version, clean, properties=properties))
    device.connection.authenticated(principal, bench.now_ms)
    (connack,) = device.decoded()
    assert isinstance(connack, Connack)
    assert device.closed
    return connack.code


# -- sessions


@versions
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("other", [ALICE, ANONYMOUS])
def test_a_session_is_not_taken_by_who_knows_its_client_id(
    version: int, clean: bool, connected: bool, other: Principal
) -> None:
    bench = Bench()
    bob = bench.connect("d", clean=False, principal=BOB)
    bob.subscribe("t", qos=1)
    if not connected:
        bob.lose()
    code = refused(bench, "d", other, version, clean)
    assert code == (Reason.NOT_AUTHORIZED if version == V5 else 5)
    bench.connect("s").send(Publish("t", b"queued", 1, packet_id=1))
    bench.store()
    if not connected:
        bob = bench.connect("d", clean=False, principal=BOB)
        assert bob.connack.session_present  # type: ignore[attr-defined]
    assert not bob.closed
    assert bob.publishes() == [("t", b"queued")]


def test_a_connection_without_a_kept_session_is_not_ended_by_another_user() -> None:
    bench = Bench()
    bob = bench.connect("d", principal=BOB)
    refused(bench, "d", ALICE, V5, True)
    assert not bob.closed
    bob.lose()
    assert not bench.connect("d", principal=ALICE).closed  # nobody's any more


def test_who_owns_a_session_outlasts_a_restart() -> None:
    bench = CrashBench()
    bob = bench.connect("d", clean=False, principal=BOB)
    bob.send(Subscribe(1, (Filter("t", 1),)))
    bench.settle()
    bench.crash()
    refused(bench, "d", ALICE, V5, True)
    bob = bench.connect("d", clean=False, principal=Principal("bob", roles=("other",)))
    assert bob.connack.session_present  # type: ignore[attr-defined]


def test_anonymous_clients_count_as_one() -> None:
    bench = Bench()
    first = bench.connect("d", clean=False)
    second = bench.connect("d", clean=False, principal=Principal("anonymous", "anonymous"))
    assert first.closed
    assert second.connack.session_present  # type: ignore[attr-defined]
    refused(bench, "d", Principal("anonymous"), V5, False)


def test_a_session_of_another_user_can_be_replaced_where_the_operator_says_so() -> None:
    bench = Bench(limits=Limits(session_of_another_user="replace"))
    alice = bench.connect("d", clean=False, principal=ALICE)
    alice.subscribe("t", qos=1)
    mallory = bench.connect("d", clean=False, principal=BOB)
    assert alice.closed
    assert mallory.connack.session_present is False  # type: ignore[attr-defined]
    assert bench.hub.index.count == 0
