"""What is fuzzed: bytes in, and whatever comes, no crash, no hang, nobody else touched, memory
bounded. A target raises when the broker is wrong.
"""

from __future__ import annotations

from plugins.mqtt.codec import Decoder
from plugins.mqtt.delivery import DeliveryLimits
from plugins.mqtt.encoding import encode
from plugins.mqtt.hub import Limits
from plugins.mqtt.packets import (
    V5,
    V31,
    V311,
    Connect,
    Publish,
    PublishRun,
)
from plugins.mqtt.proxy import ProxyError, parse_proxy_header
from tests.support.mqtt_bench import Bench

PACKET_BYTES_MAX = 4096
VERSIONS = (V31, V311, V5)
LIMITS = Limits(
    packet_bytes_max=PACKET_BYTES_MAX, sessions_max=8, subscriptions_max=8, receive_max=8,
    topic_alias_max=4, connections_max=8,
)  # fmt: skip


def codec(data: bytes) -> None:
    """Packets come out alike however the bytes were cut; what is held is bounded; what was decoded
    can be encoded and decodes to the same."""
    if not data:
        return
    version = VERSIONS[data[0] % 3]
    cut, data = data[0] // 3 + 1, data[1:]
    whole = Decoder(PACKET_BYTES_MAX, version=version)
    packets = whole.feed(data)
    pieces = Decoder(PACKET_BYTES_MAX, version=version)
    again = []
    for start in range(0, len(data), cut):
        if pieces.error is not None:
            break
        again += pieces.feed(data[start : start + cut])
        assert pieces.held_bytes <= PACKET_BYTES_MAX + cut
    assert [repr(one) for one in packets] == [repr(one) for one in again]
    assert type(whole.error) is type(pieces.error)
    for packet in packets:
        assert not isinstance(packet, PublishRun)
        if isinstance(packet, Connect):
            continue
        (twin,) = Decoder(1 << 20, version=version).feed(encode(packet, version))
        assert repr(twin) == repr(packet)


def connection(data: bytes) -> None:
    """A client says anything, before or after it was let in; another one notices nothing."""
    if not data:
        return
    mode, data = data[0], data[1:]
    bench = Bench(limits=LIMITS, delivery=DeliveryLimits(inflight_max=4, queue_count_max=8))
    witness = bench.connect("witness", version=V5)
    witness.subscribe("witness/only", qos=1)
    version = VERSIONS[mode % 3]
    device = bench.connect("fuzzed", version=version) if mode & 4 else bench.dial(version)
    step = (mode >> 3) + 1
    for start in range(0, len(data), step):
        if device.closed:
            break
        device.send_bytes(data[start : start + step])
        if mode & 128:
            bench.store()
    bench.store()
    bench.pass_time(5_000)
    witness.received()  # it may have been told of something
    witness.send(Publish("witness/only", b"alive", 1, packet_id=1))
    bench.store()
    got = [each for each in witness.received() if isinstance(each, Publish)]
    assert b"alive" in [each.payload for each in got]
    assert not witness.closed
    assert len(bench.hub.sessions) <= LIMITS.sessions_max
    assert device.connection.decoder.held_bytes <= PACKET_BYTES_MAX + step


def proxy(data: bytes) -> None:
    """A PROXY header is parsed, refused, or waits for more; never for more than it may be long."""
    try:
        header = parse_proxy_header(data)
    except ProxyError:
        return
    if header is None:
        assert len(data) < 16 + 65_535
    else:
        assert 0 < header.size_bytes <= len(data)


TARGETS = {"codec": codec, "connection": connection, "proxy": proxy}
