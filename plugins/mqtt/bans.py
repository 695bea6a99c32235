"""Who may not connect: a configured list, and clients that come and go too often. Pure."""

from __future__ import annotations

import ipaddress
from collections import deque
from dataclasses import dataclass
from typing import Final

CLIENTS_MAX: Final = 100_000
"""Most client ids whose connects are counted; beyond, the oldest counts are forgotten."""


@dataclass(frozen=True, slots=True)
class BanRules:
    client_ids: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    flapping_connects: int = 0
    """Connects of one client id within `flapping_window_ms` that get it banned; 0: never."""
    flapping_window_ms: int = 60_000
    flapping_ban_ms: int = 300_000


class Bans:
    """Judges each CONNECT."""

    def __init__(self, rules: BanRules) -> None:
        self._rules = rules
        self._connects: dict[str, deque[int]] = {}
        self.until: dict[str, int] = {}
        """Client id -> when its ban for flapping ends (ms)."""
        self.flapped = 0
        """Bans for flapping so far."""

    def judge(self, client_id: str, user: str | None, host: str, now_ms: int) -> str | None:
        """Why this client may not connect; None: it may. Counts the attempt."""
        rules = self._rules
        if client_id in rules.client_ids:
            return "this client identifier is banned"
        if user is not None and user in rules.users:
            return "this user is banned"
        if rules.networks and self._host_banned(host):
            return "this address is banned"
        if rules.flapping_connects:
            return self._flaps(client_id, now_ms)
        return None

    def _host_banned(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:  # a unix socket
            return False
        return any(address in network for network in self._rules.networks)

    def _flaps(self, client_id: str, now_ms: int) -> str | None:
        rules = self._rules
        until = self.until.get(client_id)
        if until is not None:
            if now_ms < until:
                return "banned for connecting too often"
            del self.until[client_id]
        times = self._connects.get(client_id)
        if times is None:
            if len(self._connects) >= CLIENTS_MAX:
                del self._connects[next(iter(self._connects))]
            times = self._connects[client_id] = deque()
        while times and now_ms - times[0] >= rules.flapping_window_ms:
            times.popleft()
        times.append(now_ms)
        if len(times) <= rules.flapping_connects:
            return None
        del self._connects[client_id]
        if len(self.until) >= CLIENTS_MAX:
            del self.until[next(iter(self.until))]
        self.until[client_id] = now_ms + rules.flapping_ban_ms
        self.flapped += 1
        return "banned for connecting too often"

    def forget(self, now_ms: int) -> None:
        """Drop what no longer matters. Call now and then."""
        self.until = {name: until for name, until in self.until.items() if until > now_ms}
        window = self._rules.flapping_window_ms
        self._connects = {
            name: times for name, times in self._connects.items() if now_ms - times[-1] < window
        }
