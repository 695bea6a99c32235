"""How many connections a listener takes, from whom, and what they may hold before they
authenticate. Pure: a listener tells what its connections do and obeys the answers.

Four bounds, each of which may be off:

- all connections of the listener,
- those of one peer,
- those that have not authenticated yet, so that they can never take the place of those that have,
- those of one peer that have not authenticated yet.

A peer is an IPv4 address, or an IPv6 /64: a host that has one address of a /64 has all of them.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal

Bound = Literal["connections", "peer", "unauthenticated", "unauthenticated_peer", "bytes"]
"""Which bound refused a connection."""

_IPV6_PREFIX: Final = 64


def peer_of(host: str) -> str:
    """What connections of `host` are counted under. IPv4 in IPv6 is IPv4; what is not an address (a
    Unix socket) is a peer of its own."""
    if ":" not in host and "%" not in host:
        return host  # IPv4 has one way to be written
    try:
        # Behind `%` stands the zone of a link-local IPv6 address (RFC 4007).
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), _IPV6_PREFIX), strict=False))
    return str(address)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one listener; None: without one."""

    connections_max: int | None = None
    peer_max: int | None = None
    unauthenticated_max: int | None = None
    unauthenticated_peer_max: int | None = None
    unauthenticated_max_bytes: int | None = None
    """Received bytes that all connections together may hold before they authenticate."""


class ConnectionRefused(Exception):
    """A connection is one too many, or holds too much; `bound` says of which."""

    def __init__(self, bound: Bound, limit: int) -> None:
        super().__init__(f"{bound.replace('_', ' ')}: at most {limit}")
        self.bound: Bound = bound
        self.limit = limit


class ConnectionLimiter:
    """The connections of one listener. Every admitted connection must be closed in the end."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.refused: Counter[Bound] = Counter()
        """How often each limit refused a connection."""
        self._peers: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._open = 0
        self._unauthenticated = 0
        self._bytes = 0

    @property
    def connections(self) -> int:
        """Open now."""
        return self._open

    @property
    def unauthenticated(self) -> int:
        """Open now, and not authenticated."""
        return self._unauthenticated

    @property
    def unauthenticated_bytes(self) -> int:
        """Held now by connections that have not authenticated."""
        return self._bytes

    def admit(self, host: str, *, for_many: bool = False) -> AdmittedConnection:
        """Count a new connection, which has not authenticated yet. `for_many`: the host is a proxy,
        which has no bounds of its own. Raises ConnectionRefused."""
        limits, peer = self.limits, peer_of(host)
        peers, waiting = self._peers.get(peer, 0), self._waiting.get(peer, 0)
        self._check("connections", self._open, limits.connections_max)
        self._check("peer", 0 if for_many else peers, limits.peer_max)
        self._check("unauthenticated", self._unauthenticated, limits.unauthenticated_max)
        self._check(
            "unauthenticated_peer", 0 if for_many else waiting, limits.unauthenticated_peer_max
        )
        self._open += 1
        self._unauthenticated += 1
        self._peers[peer] = peers + 1
        self._waiting[peer] = waiting + 1
        return AdmittedConnection(self, peer)

    def _check(self, bound: Bound, used: int, limit: int | None) -> None:
        if limit is not None and used >= limit:
            self.refused[bound] += 1
            raise ConnectionRefused(bound, limit)

    def _held(self, more: int) -> None:
        limit = self.limits.unauthenticated_max_bytes
        if more > 0 and limit is not None and self._bytes + more > limit:
            self.refused["bytes"] += 1
            raise ConnectionRefused("bytes", limit)
        self._bytes += more

    def _authenticated(self, peer: str) -> None:
        self._unauthenticated -= 1
        _take(self._waiting, peer)

    def _closed(self, peer: str) -> None:
        self._open -= 1
        _take(self._peers, peer)


class AdmittedConnection:
    """One connection that was admitted."""

    __slots__ = ("_bytes", "_limiter", "_open", "authenticated", "peer")

    def __init__(self, limiter: ConnectionLimiter, peer: str) -> None:
        self._limiter = limiter
        self._open = True
        self._bytes = 0
        self.peer = peer
        """What it is counted under."""
        self.authenticated = False

    def hold(self, size: int) -> None:
        """It holds `size` received bytes now. Costs nothing once it has authenticated.

        Raises ConnectionRefused, counting what it held before, when that is too much."""
        if self._open and not self.authenticated:
            self._limiter._held(size - self._bytes)
            self._bytes = size

    def authenticate(self) -> None:
        """It has authenticated: it takes from no share of the others any more."""
        if self._open and not self.authenticated:
            self.hold(0)
            self.authenticated = True
            self._limiter._authenticated(self.peer)

    def close(self) -> None:
        """It is gone. Calling it again changes nothing."""
        if self._open:
            # Gives back what it held of the shares of those that have not authenticated.
            self.authenticate()
            self._open = False
            self._limiter._closed(self.peer)


def _take(counts: dict[str, int], peer: str) -> None:
    left = counts[peer] - 1
    if left:
        counts[peer] = left
    else:
        # Else every address that ever connected would stay in memory.
        del counts[peer]
