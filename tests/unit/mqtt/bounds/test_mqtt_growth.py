"""Goal: what a decoder of network input costs grows no faster than the input.

Each input is built at some size and at eight times that size; the CPU time of both is compared, the
least of several runs each. Linear work takes about 8 times as long and quadratic work about 64
times; the bound between them leaves room for a busy machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from lakemq.broker_core.api.topic_filters import matches
from lakemq.broker_core.api.types import ANONYMOUS, Operation
from lakemq.plugins.mqtt.routing.retained import Retained
from lakemq.plugins.mqtt.routing.subscriptions import SubscriptionIndex
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.state.sessions import Session, Subscription
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.messages import Message
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Acknowledgement,
    Filter,
    PacketType,
    Ping,
    Publish,
    Suback,
    Subscribe,
    Unsubscribe,
)
from lakemq.plugins.mqtt.wire.primitives import variable_bytes
from lakemq.plugins.mqtt.wire.proxy import parse_proxy_header
from lakemq.plugins.mqtt.wire.topics import Address, parse_filter
from tests.support.growth import Work, grows_linearly
from tests.support.mqtt.bench import Bench

pytestmark = pytest.mark.slow


def fed(packet: bytes, version: int, step: int | None = None) -> Work:
    """Feed a decoder with the bytes, at once or in pieces."""
    decoder = Decoder(1 << 28, version=version)
    decoder.runs = True

    def feed() -> None:
        for start in range(0, len(packet), step or len(packet)):
            decoder.feed(packet[start : start + (step or len(packet))])

    return feed


def property_field(one: bytes, count: int) -> bytes:
    return variable_bytes(len(one) * count) + one * count


USER_PROPERTY: Final = b"\x26\0\0\0\0"
IDENTIFIER: Final = b"\x0b\x01"


def packet_of(first: int, body: bytes) -> bytes:
    return bytes((first,)) + variable_bytes(len(body)) + body


def connect_with_user_properties(count: int) -> bytes:
    fields = b"\0\4MQTT\5\2\0\0" + property_field(USER_PROPERTY, count) + b"\0\1d"
    return packet_of(0x10, fields)


def publish_with(one: bytes, count: int) -> bytes:
    return packet_of(0x30, b"\0\1t" + property_field(one, count))


_TWO_PUBACKS: Final = 2 * encode(Acknowledgement(PacketType.PUBACK, 7), V311)
INPUTS: Final[dict[str, tuple[Callable[[int], Work], int]]] = {
    "user properties of CONNECT": (lambda n: fed(connect_with_user_properties(n), 0), 5000),
    "user properties of PUBLISH": (lambda n: fed(publish_with(USER_PROPERTY, n), V5), 5000),
    "subscription identifiers of PUBLISH": (lambda n: fed(publish_with(IDENTIFIER, n), V5), 5000),
    "filters of SUBSCRIBE": (lambda n: fed(encode(Subscribe(1, (Filter("a"),) * n), V5), V5), 1000),
    "filters of UNSUBSCRIBE": (lambda n: fed(encode(Unsubscribe(1, ("a",) * n), V5), V5), 1000),
    "codes of SUBACK": (lambda n: fed(encode(Suback(1, (0,) * n), V5), V5), 5000),
    "a deep topic name": (lambda n: fed(encode(Publish("/" * n, b""), V311), V311), 7000),
    "a packet that comes byte by byte": (
        lambda n: fed(encode(Publish("t", b"x" * n), V311), V311, 1),
        5000,
    ),
    "many small packets at once": (
        lambda n: fed(encode(Ping(PacketType.PINGREQ), V311) * n, V311),
        3000,
    ),
    "runs of PUBACKs with others between": (
        lambda n: fed((_TWO_PUBACKS + encode(Ping(PacketType.PINGREQ), V311)) * n, V311),
        3000,
    ),
    "packets cut at every third byte": (
        lambda n: fed(encode(Acknowledgement(PacketType.PUBACK, 7), V311) * n, V311, 3),
        3000,
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_decoding_grows_no_faster_than_the_packet(name: str) -> None:
    prepare, size = INPUTS[name]
    grows_linearly(prepare, size)


@pytest.mark.parametrize("text", ["a/" * 200 + "b", "+/" * 200 + "#"])
def test_filters_and_names_are_matched_in_time_of_their_length(text: str) -> None:
    def prepare(count: int) -> Work:
        levels = (text.split("/") * count)[: len(text.split("/")) * count - 1]
        topic_filter = "/".join(level if level != "#" else "+" for level in levels)
        name = topic_filter.replace("+", "x")
        return lambda: (parse_filter(topic_filter), matches(topic_filter, name))

    grows_linearly(prepare, 10)


def test_a_proxy_header_that_comes_byte_by_byte_is_bounded() -> None:
    """No header is waited for beyond what it may be long."""
    header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + (4000).to_bytes(2, "big") + bytes(4000)
    for end in range(len(header)):
        assert parse_proxy_header(header[:end]) is None
    assert parse_proxy_header(header) is not None


def test_deep_names_are_looked_up_in_time_of_their_length() -> None:
    """Among subscriptions and among retained messages; no recursion either."""

    def prepare(levels: int) -> Work:
        index, retained = SubscriptionIndex(), Retained(10, 1 << 30)
        session = Session("s", ANONYMOUS, DeliveryLimits())
        name = "/".join("x" * levels)
        for text in ("#", "+/" * (levels - 1) + "x", "x/" * (levels - 2) + "+/x"):
            index.add(Subscription(session, Address(text), 0, 0))
        message = Message(name, b"x", 0, True, 0)

        def look_up() -> None:
            for _ in range(20):
                index._matches.clear()
                assert len(index.match(name).targets) == 1
                retained.put(message)
                assert list(retained.match("+/" * (levels - 1) + "x", 0)) == [message]
                retained.forget(name)

        return look_up

    grows_linearly(prepare, 200)


def websocket_fed(data: bytes, step: int) -> Work:
    frames = ServerProtocol(max_size=65_536)

    def feed() -> None:
        for start in range(0, len(data), step):
            frames.receive_data(data[start : start + step])
            frames.events_received()
            frames.data_to_send()

    return feed


def masked(payload: bytes, opcode: Opcode) -> bytes:
    return Frame(opcode, payload).serialize(mask=True)


HANDSHAKE: Final = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize("step", [7, 65_536])
def test_small_frames_cost_in_proportion_to_their_number(step: int) -> None:
    one = masked(b"x", Opcode.BINARY) + masked(b"", Opcode.PING)
    grows_linearly(lambda n: websocket_fed(HANDSHAKE + b"\r\n" + one * n, step), 200)


def test_a_handshake_that_drips_costs_in_proportion_to_its_length() -> None:
    grows_linearly(lambda n: websocket_fed(HANDSHAKE + b"X-A: " + b"b" * n, 1), 900)


def test_subscribing_costs_in_proportion_to_the_filters() -> None:
    def prepare(count: int) -> Work:
        bench = Bench()
        device = bench.connect("d", version=V5)
        packet = Subscribe(1, tuple(Filter(f"a/{n}/+") for n in range(count)))
        return lambda: device.send(packet)

    grows_linearly(prepare, 200)


def test_filters_that_somebody_must_be_asked_about_cost_in_proportion() -> None:
    """Each answer goes on where the last one stopped."""

    def prepare(count: int) -> Work:
        bench = Bench()
        device = bench.connect("d", version=V5)
        names = [f"a/{n}" for n in range(count)]
        bench.undecided = {(Operation.READ, name) for name in names}
        device.send(Subscribe(1, tuple(map(Filter, names))))

        def answer() -> None:
            while bench.answer_questions():
                pass

        return answer

    grows_linearly(prepare, 500)


def test_publishes_that_somebody_must_be_asked_about_cost_in_proportion() -> None:
    def prepare(count: int) -> Work:
        bench = Bench()
        device = bench.connect("d", version=V5)
        names = [f"a/{n}" for n in range(count)]
        bench.undecided = {(Operation.WRITE, name) for name in names}
        device.send(*(Publish(name, b"", 0) for name in names))

        def answer() -> None:
            while bench.answer_questions():
                pass

        return answer

    grows_linearly(prepare, 500)
