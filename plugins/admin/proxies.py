"""Servers that pass requests on and are believed when they say from whom. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from lakemq.broker_core.api.errors import ConfigError

HEADER: Final = "x-forwarded-for"
KNOWN_BY: Final = "x-lakemq-dashboard"
"""Header by which a node knows the dashboard that it has started."""


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Of `ADDRESS`, `ADDRESS:PORT` or `[ADDRESS]:PORT`; None: it is none. IPv4 in IPv6 is IPv4."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address):
        return found.ipv4_mapped or found
    return found


class Proxies:
    """Addresses and networks. Without any, nothing that is passed on is believed."""

    def __init__(self, section: str, named: Sequence[str] = ()) -> None:
        """`section`: of the configuration. Raises ConfigError: no address, no network."""
        try:
            self._networks = tuple(ipaddress.ip_network(each, strict=False) for each in named)
        except ValueError as error:
            raise ConfigError(
                f"{section}: proxies: {error}; give an address or a network"
            ) from None

    def __contains__(self, host: str) -> bool:
        if not self._networks:
            return False
        found = address_of(host)
        return found is not None and any(found in network for network in self._networks)

    def visitor(self, host: str, forwarded_for: Sequence[str], *, known: bool = False) -> str:
        """Who a request is from: `host`, or where that is a proxy the last address in the values of
        `X-Forwarded-For` that no proxy has. What stands before it may be made up. `known`: the
        host is one, whatever its address."""
        for said in reversed([each for value in forwarded_for for each in value.split(",")]):
            if not known and host not in self:
                break
            known, found = False, address_of(said)
            if found is None:  # the one who passed that on is all that is known
                break
            host = str(found)
        return host
