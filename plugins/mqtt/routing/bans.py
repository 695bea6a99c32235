"""Who may not connect: a configured list, and clients that come and go too often."""

from __future__ import annotations

import ipaddress
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from lakemq.broker_core.api.errors import InvalidRequest

CLIENTS_MAX: Final = 100_000
"""Most client ids whose connects are counted; beyond, the oldest counts are forgotten."""


@dataclass(frozen=True, slots=True)
class BanRules:
    """Configured bans, and when a client id that flaps is banned."""

    client_ids: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    flapping_connects: int = 0
    """Connects of one client id within `flapping_window_ms` that get it banned; 0: never."""
    flapping_window_ms: int = 60_000
    flapping_ban_ms: int = 300_000


@dataclass(frozen=True, slots=True)
class Ban:
    """One that an operator made."""

    kind: str
    """`client_id`, `user` or `host`."""
    value: str
    """For `host` an address or a network."""
    until_ms: int | None = None
    """None: for ever."""
    why: str = ""


KINDS: Final = ("client_id", "user", "host")
BANS_MAX: Final = 100_000


def check_ban(ban: Ban) -> Ban:
    """The ban, its network in canonical form. Raises InvalidRequest."""
    if ban.kind not in KINDS or not ban.value or len(ban.value) > 1024:
        raise InvalidRequest("a ban is of a client_id, a user or a host, and has a value")
    if ban.kind != "host":
        return ban
    try:
        return replace(ban, value=str(ipaddress.ip_network(ban.value)))
    except ValueError as error:
        raise InvalidRequest(f"host {ban.value!r}: {error}") from None


class Bans:
    """Checks each CONNECT against the bans."""

    def __init__(self, rules: BanRules) -> None:
        self.rules = rules
        """Of the configuration; it may be set at any time."""
        self._connects: dict[str, deque[int]] = {}
        self.until: dict[str, int] = {}
        """Client id -> when its ban for flapping ends (ms)."""
        self._imposed: dict[tuple[str, str], Ban] = {}
        self._networks: dict[str, ipaddress.IPv4Network | ipaddress.IPv6Network] = {}
        self.flapped = 0
        """Bans for flapping so far."""

    def reason_to_refuse(
        self, client_id: str, user: str | None, host: str, now_ms: int
    ) -> str | None:
        """Why this client may not connect; None: it may. Counts the attempt."""
        rules = self.rules
        if client_id in rules.client_ids:
            return "this client identifier is banned"
        if user is not None and user in rules.users:
            return "this user is banned"
        if rules.networks and self._host_banned(host):
            return "this address is banned"
        if self._imposed and self._is_imposed(client_id, user, host, now_ms):
            return "banned by an operator"
        if rules.flapping_connects:
            return self._flaps(client_id, now_ms)
        return None

    # -- bans of operators

    def impose(self, ban: Ban) -> None:
        """Raises InvalidRequest: there are too many."""
        key = (ban.kind, ban.value)
        if len(self._imposed) >= BANS_MAX and key not in self._imposed:
            raise InvalidRequest(f"{BANS_MAX} bans are the most")
        self._imposed[key] = ban
        if ban.kind == "host":
            self._networks[ban.value] = ipaddress.ip_network(ban.value)

    def lift(self, kind: str, value: str) -> None:
        """End a ban of an operator, if there is one."""
        self._imposed.pop((kind, value), None)
        if kind == "host":
            self._networks.pop(value, None)

    def imposed(self) -> list[Ban]:
        """All that operators imposed, ended or not."""
        return list(self._imposed.values())

    def knows(self, kind: str, value: str) -> bool:
        """Whether an operator imposed that ban, ended or not."""
        return (kind, value) in self._imposed

    def list_all(self, now_ms: int) -> list[Ban]:
        """What operators imposed, and clients that are banned for flapping."""
        flapping = [
            Ban("client_id", name, until, "it connected too often")
            for name, until in self.until.items()
            if until > now_ms
        ]
        return [*(one for one in self._imposed.values() if _holds(one, now_ms)), *flapping]

    def _is_imposed(self, client_id: str, user: str | None, host: str, now_ms: int) -> bool:
        found = [self._imposed.get(("client_id", client_id))]
        if user is not None:
            found.append(self._imposed.get(("user", user)))
        address = _address(host) if self._networks else None
        if address is not None:
            found += [
                self._imposed[("host", text)]
                for text, network in self._networks.items()
                if address in network
            ]
        return any(_holds(one, now_ms) for one in found if one is not None)

    # -- configured ones

    def _host_banned(self, host: str) -> bool:
        address = _address(host)
        return address is not None and any(address in network for network in self.rules.networks)

    def _flaps(self, client_id: str, now_ms: int) -> str | None:
        rules = self.rules
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
        # `times` never grows beyond `flapping_connects` + 1: then its client is banned.
        while times and now_ms - times[0] >= rules.flapping_window_ms:
            times.popleft()
        times.append(now_ms)
        if len(times) <= rules.flapping_connects:
            return None
        # The ban starts a new count when it ends.
        del self._connects[client_id]
        if len(self.until) >= CLIENTS_MAX:
            del self.until[next(iter(self.until))]
        self.until[client_id] = now_ms + rules.flapping_ban_ms
        self.flapped += 1
        return "banned for connecting too often"

    def forget(self, now_ms: int) -> None:
        """Drop what no longer matters. Call now and then."""
        for ban in [one for one in self._imposed.values() if not _holds(one, now_ms)]:
            self.lift(ban.kind, ban.value)
        self.until = {name: until for name, until in self.until.items() if until > now_ms}
        window = self.rules.flapping_window_ms
        self._connects = {
            name: times for name, times in self._connects.items() if now_ms - times[-1] < window
        }


def _holds(ban: Ban, now_ms: int) -> bool:
    return ban.until_ms is None or now_ms < ban.until_ms


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None: a unix socket."""
    try:
        # Without the zone of a link-local address (RFC 4007, 11), which networks do not have.
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
