"""PROXY protocol: who is behind a load balancer.

Source: "The PROXY protocol", versions 1 and 2 (HAProxy, 2020). The header comes before anything
else on a connection and tells the address of the real client.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

HEADER_MAX_BYTES: Final = 4096
"""A header may be no longer; version 1 is bound to 107 bytes by its own rules."""
_V1_MAX_BYTES: Final = 107
_V1: Final = b"PROXY "
_V2: Final = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED_BYTES: Final = 16
_ADDRESS_BYTES: Final = {0x11: 4, 0x12: 4, 0x21: 16, 0x22: 16}
"""Size of one address by family and protocol; TCP and UDP over IPv4 and IPv6."""


class ProxyError(ValueError):
    """The connection does not begin with a valid header."""


class ProxyHeader(NamedTuple):
    """A complete header."""

    size_bytes: int
    """Where the client's own bytes begin."""
    client_host: str | None
    """None: the header names no client (a health check of the proxy, or an unknown family)."""


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header at the start of `data`; None: more bytes are needed."""
    # The beginning of a signature is enough to wait for the rest of it.
    if data.startswith(_V1[: len(data)]):
        return _parse_v1(data)
    if data.startswith(_V2[: len(data)]):
        return _parse_v2(data)
    raise ProxyError("the connection does not begin with a PROXY header")


def _parse_v1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _V1_MAX_BYTES)
    if end < 0:
        if len(data) >= _V1_MAX_BYTES:
            raise ProxyError("PROXY header of version 1 is longer than 107 bytes")
        return None
    fields = data[:end].split(b" ")
    if fields[1] == b"UNKNOWN":
        return ProxyHeader(end + 2, None)
    families = {b"TCP4": 4, b"TCP6": 6}
    if len(fields) != 6 or fields[1] not in families:
        raise ProxyError(f"PROXY header {data[:end]!r}")
    try:
        address = ipaddress.ip_address(fields[2].decode("ascii"))
    except ValueError as error:
        raise ProxyError(f"PROXY header: {error}") from None
    if address.version != families[fields[1]]:
        raise ProxyError(f"PROXY header: {address} is not of its family")
    return ProxyHeader(end + 2, str(address))


def _parse_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < _FIXED_BYTES:
        return None
    command, family = data[12], data[13]
    size = _FIXED_BYTES + int.from_bytes(data[14:16], "big")
    if command not in (0x20, 0x21):
        raise ProxyError(f"PROXY header of version 2: command {command:#04x}")
    if size > HEADER_MAX_BYTES:
        raise ProxyError(f"PROXY header of {size} bytes")
    if len(data) < size:
        return None
    length = _ADDRESS_BYTES.get(family)
    # LOCAL, or a family without IP addresses (UNIX, UNSPEC): no client is named.
    if command == 0x20 or length is None:
        return ProxyHeader(size, None)
    if size < _FIXED_BYTES + 2 * length + 4:
        raise ProxyError("PROXY header of version 2 is too short for its addresses")
    address = ipaddress.ip_address(data[_FIXED_BYTES : _FIXED_BYTES + length])
    return ProxyHeader(size, str(address))
