"""Goal: PROXY headers are read exactly, in any pieces, and nothing else is taken for one."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.plugins.mqtt.wire.proxy import ProxyError, ProxyHeader, parse_proxy_header

V2 = b"\r\n\r\n\0\r\nQUIT\n"


def v2(command: int, family: int, body: bytes) -> bytes:
    return V2 + bytes((command, family)) + len(body).to_bytes(2, "big") + body


V4_PAIR = bytes((10, 1, 2, 3)) + bytes(4) + b"\x12\x34\x07\x5b"
V6_PAIR = ipaddress.ip_address("2001:db8::7").packed + bytes(16) + b"\x12\x34\x07\x5b"

GOOD = [
    (b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 1883\r\n", "192.168.0.1"),
    (b"PROXY TCP6 2001:db8::1 ::1 56324 1883\r\n", "2001:db8::1"),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    (v2(0x21, 0x11, V4_PAIR), "10.1.2.3"),
    (v2(0x21, 0x11, V4_PAIR + b"\x03\x00\x04abcd"), "10.1.2.3"),  # with a TLV
    (v2(0x21, 0x21, V6_PAIR), "2001:db8::7"),
    (v2(0x20, 0x00, b""), None),
    (v2(0x20, 0x11, V4_PAIR), None),  # LOCAL: the addresses do not count
    (v2(0x21, 0x31, bytes(216)), None),  # unix sockets
]


@pytest.mark.parametrize(("header", "host"), GOOD)
def test_headers(header: bytes, host: str | None) -> None:
    assert parse_proxy_header(header + b"\x10\x0c") == ProxyHeader(len(header), host)
    for cut in range(len(header)):
        assert parse_proxy_header(header[:cut]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x10\x0c\x00\x04MQTT",
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 192.168.0.1\r\n",
        b"PROXY TCP5 192.168.0.1 192.168.0.11 56324 1883\r\n",
        b"PROXY TCP4 2001:db8::1 ::1 56324 1883\r\n",
        b"PROXY TCP4 host host 56324 1883\r\n",
        b"PROXY TCP4 \xff 1 2 3\r\n",
        b"PROXY " + b"x" * 120,
        v2(0x22, 0x11, V4_PAIR),
        v2(0x21, 0x11, V4_PAIR[:8]),
        V2 + b"\x21\x11\xff\xff",
    ],
)
def test_what_is_no_header(data: bytes) -> None:
    with pytest.raises(ProxyError):
        parse_proxy_header(data)


@given(st.binary(max_size=130), st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", V2, V2 + b"\x21"]))
def test_no_bytes_crash_it(data: bytes, start: bytes) -> None:
    try:
        header = parse_proxy_header(start + data)
    except ProxyError:
        return
    assert header is None or 0 < header.size_bytes <= len(start + data)
