"""What operators can ask the MQTT side of a node, over the HTTP admin. Edge: yields to the loop."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final, Protocol

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError
from lakemq.broker_core.api.ports import AdminRequest, AdminRoute
from lakemq.plugins.mqtt.ops.operating import enforce, kick
from lakemq.plugins.mqtt.ops.reports import client_report, client_summary, slow_report
from lakemq.plugins.mqtt.routing.bans import KINDS, Ban, check_ban
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.state.sessions import Session

PAGE_MAX: Final = 1000
_STRIDE: Final = 10_000
"""Sessions that are looked at before others come to their turn."""


class UnknownClient(LakeMQError):
    """No session has the client id that was asked for."""

    code = "UNKNOWN_CLIENT"


class UnknownBan(LakeMQError):
    """There is no such ban of an operator, so it cannot be lifted."""

    code = "UNKNOWN_BAN"


class BanStore(Protocol):
    """Where bans are kept."""

    async def keep_ban(self, kind: str, value: str, ban: Ban | None) -> None:
        """Returns when it is on disk. None: it is lifted."""


class AdministeredEngine(Protocol):
    """The MQTT side of a node, as operators' requests need it."""

    hub: Hub

    @property
    def journal(self) -> BanStore:
        """Where bans are stored."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC; never goes back."""

    def after(self) -> None:
        """Carry out what the hub wants done."""


class MqttAdmin:
    """Routes under `/api/v1/mqtt/`."""

    def __init__(self, engine: AdministeredEngine) -> None:
        self._engine = engine
        self._hub = engine.hub

    def routes(self) -> Sequence[AdminRoute]:
        """The routes, for the node's HTTP admin."""
        return [
            AdminRoute("GET", "mqtt/clients", self.clients),
            AdminRoute("GET", "mqtt/clients/{client_id}", self.client),
            AdminRoute("DELETE", "mqtt/clients/{client_id}", self.kick),
            AdminRoute("GET", "mqtt/slow", self.slow),
            AdminRoute("DELETE", "mqtt/slow", self.forget_slow),
            AdminRoute("GET", "mqtt/bans", self.bans),
            AdminRoute("POST", "mqtt/bans", self.ban),
            AdminRoute("DELETE", "mqtt/bans/{kind}/{value}", self.lift),
        ]

    async def clients(self, asked: AdminRequest) -> object:
        """A page of clients by client id: `after`, `limit`, `connected`, `prefix`."""
        limit = _number(asked.query.get("limit", "100"), 1, PAGE_MAX)
        after, prefix = asked.query.get("after", ""), asked.query.get("prefix", "")
        connected = {"": None, "true": True, "false": False}.get(asked.query.get("connected", ""))

        def wanted(session: Session) -> bool:
            client_id = session.client_id
            online = session.connection is not None
            return (
                client_id > after and client_id.startswith(prefix) and connected in (None, online)
            )

        # A copy, since clients come and go between the turns of the loop.
        sessions, best = list(self._hub.sessions.values()), list[Session]()
        for start in range(0, len(sessions), _STRIDE):
            part = [one for one in sessions[start : start + _STRIDE] if wanted(one)]
            best = heapq.nsmallest(limit + 1, [*best, *part], key=lambda one: one.client_id)
            await asyncio.sleep(0)
        return {
            "clients": [client_summary(one) for one in best[:limit]],
            "next": best[limit - 1].client_id if len(best) > limit else None,
        }

    def _session(self, asked: AdminRequest) -> Session:
        client_id = asked.path["client_id"]
        session = self._hub.sessions.get(client_id)
        if session is None:
            raise UnknownClient(f"there is no client {client_id!r}")
        return session

    async def client(self, asked: AdminRequest) -> object:
        """All about one client. Raises UnknownClient."""
        return client_report(self._session(asked))

    async def kick(self, asked: AdminRequest) -> object:
        """End a client's connection; with `session=true` its session, too."""
        session, end = self._session(asked), asked.query.get("session") == "true"
        was_connected = session.connection is not None
        kick(self._hub, session, self._engine.now_ms(), end=end)
        self._engine.after()
        return {"disconnected": was_connected, "session_ended": end}

    async def slow(self, asked: AdminRequest) -> object:
        """The slowest clients, slowest first."""
        return {"slow": slow_report(self._hub, self._engine.now_ms())}

    async def forget_slow(self, asked: AdminRequest) -> object:
        """Forget which clients were slow."""
        self._hub.delivery.slow.clear()
        return {}

    async def bans(self, asked: AdminRequest) -> object:
        """Bans that hold now, of operators and for flapping."""
        bans = self._hub.bans.list_all(self._engine.now_ms())
        return {"bans": [asdict(one) for one in bans]}

    async def ban(self, asked: AdminRequest) -> object:
        """`kind`, `value`, and if it ends `seconds`; `why`. Ends connections that it is about."""
        kind, value = str(asked.body.get("kind", "")), str(asked.body.get("value", ""))
        seconds = asked.body.get("seconds")
        until_ms = None
        now_ms = self._engine.now_ms()
        if seconds is not None:
            until_ms = now_ms + 1000 * _number(str(seconds), 1, 10**9)
        ban = check_ban(Ban(kind, value, until_ms, str(asked.body.get("why", ""))[:200]))
        # On disk first: an operator who is answered need not ban again after a crash.
        await self._engine.journal.keep_ban(ban.kind, ban.value, ban)
        self._hub.bans.impose(ban)
        ended = enforce(self._hub, ban, now_ms)
        self._engine.after()
        return {**asdict(ban), "disconnected": ended}

    async def lift(self, asked: AdminRequest) -> object:
        """Lift a ban of an operator. Raises UnknownBan."""
        kind, value = asked.path["kind"], asked.path["value"]
        if kind not in KINDS or not self._hub.bans.knows(kind, value):
            raise UnknownBan(f"{kind} {value} is not banned, or by the configuration")
        await self._engine.journal.keep_ban(kind, value, None)
        self._hub.bans.lift(kind, value)
        return {}


def _number(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and least <= int(text) <= most):
        raise InvalidRequest(f"{text!r} is no number from {least} to {most}")
    return int(text)
