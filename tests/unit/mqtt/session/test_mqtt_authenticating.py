"""Goal: enhanced authentication (MQTT 5.0 section 4.12), with the broker's SCRAM-SHA-256, and
redirection to other servers.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from lakemq.broker_core.api.types import Accepted, Challenge, Credentials, Operation, Principal
from lakemq.broker_core.security.authn.attempts import AttemptRules, Attempts
from lakemq.broker_core.security.authn.password_users import ScramMechanism
from lakemq.plugins.mqtt.config import MqttSettings
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.session.authenticating import STEPS_MAX
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Auth,
    Connack,
    Connect,
    Disconnect,
    PacketType,
    Ping,
    Properties,
    Publish,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench, Device, disconnected_with
from tests.support.scram_client import METHOD, ScramUsers, first_of, proof

USERS = ScramUsers()


def scram_bench(**options: object) -> Bench:
    bench = Bench(**options)  # type: ignore[arg-type]
    attempts = Attempts(AttemptRules())
    bench.mechanisms[METHOD] = ScramMechanism(METHOD, [USERS], attempts, lambda: bench.now_ms)
    return bench


def auth(data: bytes | None, reason: int = 0x18, method: str | None = METHOD) -> Auth:
    return Auth(reason, Properties(authentication_method=method, authentication_data=data))


def challenged(bench: Bench, user: str = "ann", **options: object) -> tuple[Device, bytes]:
    """A client that has begun, and what the server said."""
    device = bench.dial(V5)
    properties = Properties(authentication_method=METHOD, authentication_data=first_of(user))
    device.send(Connect("d", V5, properties=properties, **options))  # type: ignore[arg-type]
    packet = device.one()
    assert isinstance(packet, Auth)
    assert packet.reason == Reason.CONTINUE_AUTHENTICATION
    assert packet.properties.authentication_method == METHOD
    said = packet.properties.authentication_data
    assert said is not None
    return device, said


def let_in(bench: Bench, user: str = "ann") -> Device:
    device, said = challenged(bench, user)
    device.send(auth(proof(user, user, said)))
    connack = device.one()
    assert isinstance(connack, Connack)
    assert connack.code == 0
    return device


def test_scram_lets_a_client_in() -> None:
    """5.0 [MQTT-4.12.0-2] [MQTT-4.12.0-5]"""
    bench = scram_bench()
    device, said = challenged(bench)
    assert not device.connection.overloaded  # its answer is read
    device.send(auth(proof("ann", "ann", said)))
    connack = device.one()
    assert isinstance(connack, Connack)
    assert (connack.code, connack.properties.authentication_method) == (0, METHOD)
    assert (connack.properties.authentication_data or b"").startswith(b"v=")
    assert device.connection.principal == Principal("ann")
    device.send(Ping(PacketType.PINGREQ))
    assert device.one() == Ping(PacketType.PINGRESP)


def test_a_method_may_begin_without_data() -> None:
    bench = scram_bench()
    device = bench.dial(V5)
    device.send(Connect("d", V5, properties=Properties(authentication_method=METHOD)))
    assert device.one().properties.authentication_data is None
    device.send(auth(first_of("ann")))
    said = device.one().properties.authentication_data
    device.send(auth(proof("ann", "ann", said)))
    assert device.one().code == 0


@pytest.mark.parametrize("wrong", ["password", "user", "nonsense", "nothing"])
def test_a_failure_ends_the_connection(wrong: str) -> None:
    """5.0 [MQTT-4.12.0-4]"""
    bench = scram_bench()
    device, said = challenged(bench, "eve" if wrong == "user" else "ann")
    answer = {
        "password": proof("ann", "guess", said),
        "user": proof("eve", "eve", said),
        "nonsense": b"\xff\0",
        "nothing": None,
    }[wrong]
    device.send(auth(answer))
    connack = device.one()
    assert isinstance(connack, Connack)
    assert (connack.code, device.closed) == (Reason.BAD_USER_NAME_OR_PASSWORD, True)
    assert connack.properties.authentication_method is None
    assert "d" not in bench.hub.sessions


def test_only_auth_and_disconnect_come_before_connack() -> None:
    """5.0 [MQTT-3.1.2-30]"""
    bench = scram_bench()
    for packet in (Publish("t", b""), Ping(PacketType.PINGREQ), Connect("d", V5)):
        device, _ = challenged(bench)
        device.send(packet)
        assert (device.one().code, device.closed) == (Reason.PROTOCOL_ERROR, True)
    device, _ = challenged(bench)
    device.send(Disconnect())
    assert device.received() == []
    assert device.closed
    assert bench.hub.sessions == {}


@pytest.mark.parametrize(
    "packet",
    [auth(b"x", method="KERBEROS"), auth(b"x", method=None), auth(b"x", 0x19), auth(b"x", 0)],
)
def test_an_auth_that_does_not_belong_there(packet: Auth) -> None:
    """5.0 [MQTT-4.12.0-3] [MQTT-4.12.0-5]"""
    bench = scram_bench()
    device, _ = challenged(bench)
    device.send(packet)
    assert (device.one().code, device.closed) == (Reason.PROTOCOL_ERROR, True)


def test_packets_behind_connect_wait_for_the_exchange_to_end_wrongly_too() -> None:
    bench = scram_bench()
    device = bench.dial(V5)
    properties = Properties(authentication_method=METHOD, authentication_data=first_of("ann"))
    device.send(Connect("d", V5, properties=properties), auth(b"too early"))
    assert isinstance(device.one(), Auth)
    assert device.one().code == Reason.BAD_USER_NAME_OR_PASSWORD


def test_a_client_that_does_not_answer_is_not_waited_for() -> None:
    bench = scram_bench(limits=Limits(connect_timeout_ms=5000))
    device, _ = challenged(bench)
    bench.pass_time(5)
    assert isinstance(device.one(), Connack)
    assert device.closed


class Endless:
    """A mechanism that always asks for more."""

    name = "ENDLESS"

    def begin(self, credentials: Credentials) -> Endless:
        return self

    async def step(self, data: bytes) -> Challenge | Accepted:
        return Challenge(b"more")


def test_an_exchange_is_bounded() -> None:
    bench = Bench()
    bench.mechanisms["ENDLESS"] = Endless()
    device = bench.dial(V5)
    device.send(Connect("d", V5, properties=Properties(authentication_method="ENDLESS")))
    for _ in range(STEPS_MAX - 1):
        assert isinstance(device.one(), Auth)
        device.send(auth(b"", method="ENDLESS"))
    device.one()
    device.send(auth(b"", method="ENDLESS"))
    assert (device.one().code, device.closed) == (Reason.NOT_AUTHORIZED, True)


# -- again


def test_a_client_authenticates_again_while_it_goes_on() -> None:
    """5.0 [MQTT-4.12.1-1]"""
    bench = scram_bench()
    device = let_in(bench)
    device.subscribe("t")
    device.send(auth(first_of("ann"), 0x19))
    said = device.one().properties.authentication_data
    device.send(Publish("t", b"meanwhile"))
    assert device.publishes() == [("t", b"meanwhile")]
    bench.forbidden = {(Operation.WRITE, "t")}
    device.send(auth(proof("ann", "ann", said)))
    packet = device.one()
    assert isinstance(packet, Auth)
    assert (packet.reason, packet.properties.authentication_method) == (0, METHOD)
    assert (packet.properties.authentication_data or b"").startswith(b"v=")
    device.send(Publish("t", b"rights are asked for anew"))
    assert device.publishes() == []


def test_a_failed_re_authentication_ends_the_connection() -> None:
    """5.0 [MQTT-4.12.1-2]"""
    bench = scram_bench()
    device = let_in(bench)
    device.send(auth(first_of("ann"), 0x19))
    said = device.one().properties.authentication_data
    device.send(auth(proof("ann", "guess", said)))
    assert disconnected_with(device) == Reason.NOT_AUTHORIZED
    assert device.closed


def test_re_authentication_is_by_the_same_user_and_method() -> None:
    """5.0 [MQTT-4.12.1-1]"""
    bench = scram_bench()
    device = let_in(bench)
    device.send(auth(first_of("bob"), 0x19))
    device.send(auth(proof("bob", "bob", device.one().properties.authentication_data)))
    assert disconnected_with(device) == Reason.NOT_AUTHORIZED
    for wrong in (auth(b"", 0x19, "SCRAM-SHA-512"), auth(b"", 0x18), auth(b"", 0)):
        device = let_in(bench)
        device.send(wrong)
        assert disconnected_with(device) == Reason.PROTOCOL_ERROR
    for second in (auth(first_of("ann"), 0x19), auth(b"before it was asked", 0x18)):
        device = let_in(bench)
        device.send(auth(first_of("ann"), 0x19), second)
        assert disconnected_with(device) == Reason.PROTOCOL_ERROR
    plain = bench.connect("plain", version=V5)
    plain.send(auth(first_of("ann"), 0x19))
    assert disconnected_with(plain) == Reason.PROTOCOL_ERROR


def test_an_answer_that_comes_too_late_is_left() -> None:
    """The client is gone, or connected anew, when the mechanism has its answer."""
    bench = scram_bench()
    device, said = challenged(bench)
    device.send(auth(proof("ann", "ann", said)))
    device.lose()
    bench.load()
    assert bench.hub.sessions == {}


# -- elsewhere


@pytest.mark.parametrize(
    ("redirect", "reason"),
    [("temporary", Reason.USE_ANOTHER_SERVER), ("permanent", Reason.SERVER_MOVED)],
)
def test_clients_are_sent_elsewhere(redirect: str, reason: Reason) -> None:
    limits = Limits(server_reference="b.example.org:1883", redirect=redirect)
    bench = Bench(limits=limits)
    device = bench.dial(V5)
    device.send(Connect("d", V5))
    connack = device.one()
    assert (connack.code, device.closed) == (reason, True)
    assert connack.properties.server_reference == "b.example.org:1883"
    quiet = bench.dial(V5)
    quiet.send(Connect("d", V5, properties=Properties(request_problem_information=0)))
    properties = quiet.one().properties
    assert (properties.server_reference, properties.reason_string) == ("b.example.org:1883", None)
    old = bench.dial(V311)
    old.send(Connect("d"))
    assert (old.one().code, old.closed) == (3, True)
    assert bench.hub.counters.connections_redirected == 3


def test_a_connected_client_is_sent_elsewhere() -> None:
    bench = Bench(limits=Limits(server_reference="b.example.org"))
    device = bench.connect("d", version=V5)
    device.connection.redirect(False, bench.now_ms)
    (packet,) = device.received()
    assert packet == Disconnect(
        Reason.USE_ANOTHER_SERVER,
        Properties(reason_string="use another server", server_reference="b.example.org"),
    )


@pytest.mark.parametrize("wrong", [{"redirect": "permanent"}, {"redirect": "somewhere"}])
def test_settings_that_lead_nowhere(wrong: Mapping[str, str]) -> None:
    with pytest.raises(ValidationError):
        MqttSettings.model_validate(wrong)
