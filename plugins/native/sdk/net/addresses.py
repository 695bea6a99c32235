"""Addresses of brokers, as callers write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from lakemq.broker_core.api.errors import InvalidRequest

DEFAULT_PORT: Final = 9700
_AS_IT_IS: Final = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:")
"""Names of gRPC's own that are handed on."""
_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_HOST: Final = re.compile(r"[^\s/:@\[\]]+")


class Bootstrap(str):
    """Where a client begins: one `host:port`, or several with commas between, and whether it goes
    there by TLS."""

    secure: bool
    probe_at_s: float
    """When it may be asked again whether it speaks TLS, by the monotonic clock."""

    def __new__(cls, addresses: str | Sequence[str], *, secure: bool = False) -> Bootstrap:
        made = super().__new__(cls, bootstrap_of(addresses))
        made.secure = secure
        made.probe_at_s = 0.0
        return made


def bootstrap_of(addresses: str | Sequence[str]) -> str:
    """One or several addresses as one text, each with a port. Raises InvalidRequest, naming what is
    not an address."""
    if isinstance(addresses, str):
        addresses = addresses.split(",")
    given: object = addresses
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise InvalidRequest(f"bootstrap is {addresses!r:.60}; it takes host:port, or a list of it")
    found = [whole_address(each.strip()) for each in addresses if each.strip()]
    if not found:
        raise InvalidRequest("bootstrap is empty; it takes host:port")
    return ",".join(found)


def whole_address(address: str) -> str:
    """`host:port` with the default port where none is given."""
    if address.startswith(_AS_IT_IS):
        return address
    where = f"bootstrap {address!r:.80}"
    if _SCHEME.match(address):
        raise InvalidRequest(f"{where}: host:port is enough; leave {address.split('/')[0]}// out")
    host, colon, port = address.rpartition(":")
    if address.startswith("[") and address.endswith("]"):
        host, colon, port = address, "", ""
    elif not colon:
        host, port = address, ""
    elif ":" in host and not host.startswith("["):
        host, colon, port = f"[{address}]", "", ""  # an IPv6 address alone
    if colon and not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise InvalidRequest(f"{where}: its port is {port!r}; it takes 1 to 65535")
    inside = host[1:-1] if host.startswith("[") and host.endswith("]") else ""
    if not (_HOST.fullmatch(host) or re.fullmatch(r"[0-9a-fA-F:.%\w]+", inside)):
        raise InvalidRequest(f"{where}: it takes host:port")
    return f"{host}:{port if colon else DEFAULT_PORT}"
