"""Goal: operators see what each client did, who is slow, and can end and ban clients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.types import Principal
from lakemq.plugins.mqtt.ops.operating import enforce, kick
from lakemq.plugins.mqtt.ops.reports import client_report, slow_report
from lakemq.plugins.mqtt.routing.bans import Ban, BanRules, Bans, check_ban
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.state.slow import SlowClients
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Acknowledgement,
    Connect,
    PacketType,
    Properties,
    Publish,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import START_MS, Bench, Device, disconnected_with


def report(device: Device) -> dict[str, object]:
    session = device.connection.session
    assert session is not None
    return client_report(session)


def test_what_a_client_sent_and_got_is_counted() -> None:
    bench = Bench()
    device = bench.connect("d", version=V5, principal=Principal("ann"))
    device.subscribe("t", qos=2)
    device.send(*(Publish("t", b"x") for _ in range(5)))  # the first alone is decoded
    device.send(*(Publish("t", b"x") for _ in range(3)))
    device.send(Publish("t", b"x", 1, packet_id=1), Publish("t", b"x", 2, packet_id=2))
    bench.store()
    device.received()
    found = report(device)
    assert found["received"] == {
        "bytes": device.connection.traffic.bytes_received,
        "packets": 12,
        "publishes": [8, 1, 1],
    }
    sent = found["sent"]
    assert isinstance(sent, dict)
    assert sent["publishes"] == [8, 1, 1]
    assert (found["inflight"], found["queued"], found["incoming_qos_2"]) == (2, 0, 1)
    assert (found["connected_ms"], found["principal"], found["protocol"]) == (
        START_MS,
        "ann",
        "5.0",
    )
    assert found["filters"] == {"t": {"qos": 2, "identifier": None}}
    device.connection.blocked = True
    device.send(Publish("t", b"x"))
    assert report(device)["dropped_qos_0"] == 1


def test_a_client_that_is_away_has_a_report_too() -> None:
    bench = Bench(delivery=DeliveryLimits(queue_count_max=2))
    device = bench.connect("d", clean=False)
    device.subscribe("t", qos=1)
    device.lose()
    for number in range(3):
        bench.connect("s").send(Publish("t", b"%d" % number, 1, packet_id=1))
    bench.store()
    found = client_report(bench.hub.sessions["d"])
    assert (found["connected"], found["queued"], found["dropped"]) == (False, 2, 1)
    assert "received" not in found


# -- slow


def slow_bench() -> Bench:
    bench = Bench()
    bench.hub.delivery.slow = SlowClients(500)
    return bench


@pytest.mark.parametrize("qos", [1, 2])
def test_a_late_acknowledgement_is_noted(qos: int) -> None:
    bench = slow_bench()
    device, sender = bench.connect("slow", version=V5), bench.connect("s")
    device.subscribe("t/#", qos=qos)
    for number, wait_s in enumerate((0.4, 0.5, 2.0, 1.0), 1):
        sender.send(Publish(f"t/{number}", b"", qos, packet_id=number))
        bench.store()
        packet_id = device.one().packet_id
        bench.pass_time(wait_s)
        if qos == 2:
            device.send(Acknowledgement(PacketType.PUBREC, packet_id))
            device.one()
        kind = PacketType.PUBACK if qos == 1 else PacketType.PUBCOMP
        device.send(Acknowledgement(kind, packet_id))
    (found,) = slow_report(bench.hub, bench.now_ms)
    assert (found["client_id"], found["latency_ms"], found["topic"], found["count"]) == (
        "slow",
        2000,
        "t/3",
        3,
    )


def test_waiting_behind_others_counts_and_being_away_does_not() -> None:
    bench = slow_bench()
    few = Properties(receive_maximum=1, session_expiry_s=1000)
    device, sender = bench.connect("d", version=V5, properties=few), bench.connect("s")
    device.subscribe("t", qos=1)
    device.lose()
    for number in (1, 2):
        sender.send(Publish("t", b"", 1, packet_id=number))
    bench.store()
    bench.pass_time(100)
    device = bench.connect("d", version=V5, clean=False, properties=few)
    bench.pass_time(0.3)
    device.send(Acknowledgement(PacketType.PUBACK, device.one().packet_id))
    assert slow_report(bench.hub, bench.now_ms) == []
    bench.pass_time(0.3)  # 300 ms alone, 600 ms since it could have been sent
    device.send(Acknowledgement(PacketType.PUBACK, device.one().packet_id))
    (found,) = slow_report(bench.hub, bench.now_ms)
    assert found["latency_ms"] == 600


def test_a_full_socket_is_slow_while_it_is_and_after() -> None:
    bench = slow_bench()
    device = bench.connect("d")
    device.connection.blocked = True
    device.connection.traffic.blocked_ms = bench.now_ms
    bench.pass_time(0.4)
    assert slow_report(bench.hub, bench.now_ms) == []
    bench.pass_time(1)
    assert [one["latency_ms"] for one in slow_report(bench.hub, bench.now_ms)] == [1400]
    bench.pass_time(1)
    device.connection.unblocked(bench.now_ms)
    (found,) = slow_report(bench.hub, bench.now_ms)
    assert (found["latency_ms"], found["topic"]) == (2400, "")


def test_the_list_holds_the_slowest_and_forgets() -> None:
    slow = SlowClients(500, count_max=3, expiry_ms=1000)
    for number, latency_ms in enumerate((700, 500, 900, 600, 550)):
        slow.note(f"c{number}", "t", latency_ms, now_ms=10)
    assert [one.latency_ms for one in slow.top(10)] == [900, 700, 600]
    slow.note("c0", "t", 100_000, now_ms=900)
    assert [one.client_id for one in slow.top(1010)] == ["c0"]
    slow.clear()
    assert slow.top(1010) == []
    assert slow.noted == 6


def test_nothing_is_slow_when_nobody_asks() -> None:
    bench = Bench()
    device, sender = bench.connect("d"), bench.connect("s")
    device.subscribe("t", qos=1)
    sender.send(Publish("t", b"", 1, packet_id=1))
    bench.store()
    bench.pass_time(10_000)
    device.send(Acknowledgement(PacketType.PUBACK, device.one().packet_id))
    assert slow_report(bench.hub, bench.now_ms) == []


# -- ending and banning


@pytest.mark.parametrize("end", [False, True])
def test_kicking_a_client(end: bool) -> None:
    bench = Bench()
    kept = Properties(session_expiry_s=1000)
    device = bench.connect("d", version=V5, properties=kept)
    kick(bench.hub, bench.hub.sessions["d"], bench.now_ms, end=end)
    assert disconnected_with(device) == Reason.ADMINISTRATIVE_ACTION
    assert device.closed
    assert ("d" in bench.hub.sessions) is not end


@pytest.mark.parametrize(
    "ban",
    [
        Ban("client_id", "d"),
        Ban("user", "ann"),
        Ban("host", "10.1.0.0/16"),
        Ban("host", "10.1.2.3"),
        Ban("client_id", "d", START_MS + 5000),
    ],
)
def test_a_ban_ends_connections_and_refuses_new_ones(ban: Ban) -> None:
    bench = Bench()
    other = bench.connect("other")
    device = bench.dial(V5)
    device.connection.peer_host = "10.1.2.3"
    device.send(Connect("d", V5, username="ann"))
    device.connection.authenticated(Principal("ann"), bench.now_ms)
    device.received()
    ban = check_ban(ban)
    bench.hub.bans.impose(ban)
    assert enforce(bench.hub, ban, bench.now_ms) == 1
    assert disconnected_with(device) == Reason.ADMINISTRATIVE_ACTION
    assert not other.closed

    def attempt() -> int:
        again = bench.dial(V5)
        again.connection.peer_host = "10.1.2.3"
        again.send(Connect("d", V5, username="ann"))
        if again.connection.credentials is not None:
            again.connection.authenticated(Principal("ann"), bench.now_ms)
        return int(again.one().code)

    assert attempt() == Reason.BANNED
    assert bench.hub.bans.list_all(bench.now_ms) == [ban]
    if ban.until_ms is not None:
        bench.pass_time(5)
        bench.hub.bans.forget(bench.now_ms)
    else:
        bench.hub.bans.lift(ban.kind, ban.value)
    assert bench.hub.bans.list_all(bench.now_ms) == []
    assert attempt() == 0


def test_flapping_clients_are_listed() -> None:
    bans = Bans(BanRules(flapping_connects=1))
    bans.reason_to_refuse("c", None, "::1", 0)
    bans.reason_to_refuse("c", None, "::1", 1)
    assert [(one.kind, one.value) for one in bans.list_all(2)] == [("client_id", "c")]


@pytest.mark.parametrize(
    "ban",
    [
        Ban("", "x"),
        Ban("client_id", ""),
        Ban("host", "nowhere"),
        Ban("host", "10.1.2.3/16"),
        Ban("user", "x" * 2000),
    ],
)
def test_wrong_bans(ban: Ban) -> None:
    with pytest.raises(InvalidRequest):
        check_ban(ban)


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_no_name_makes_judging_fail(client_id: str, user: str, host: str) -> None:
    bans = Bans(BanRules())
    bans.impose(Ban("host", "10.0.0.0/8"))
    assert bans.reason_to_refuse(client_id, user, host, 0) is None


def test_versions_are_told_apart() -> None:
    bench = Bench()
    assert report(bench.connect("d", version=V311))["protocol"] == "3.1.1"
