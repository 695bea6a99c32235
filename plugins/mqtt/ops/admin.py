"""What operators can ask the MQTT side of a node, over the admin API."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from lakemq.broker_core.api.administration.routes import (
    AdminListing,
    AdminRequest,
    AdminRoute,
    AnyRoute,
    EveryQuery,
    OwnPageQuery,
    OwnQuery,
    expect,
)
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.plugins.mqtt.ops.admin_models import (
    BanBody,
    BanMade,
    BanRow,
    ClientAnswer,
    ClientQuery,
    ClientRow,
    Kicked,
    KickQuery,
    SlowRow,
    SubscriptionRow,
)
from lakemq.plugins.mqtt.ops.explain_models import ExplainQuery, MqttExplained
from lakemq.plugins.mqtt.ops.explaining import Explainer
from lakemq.plugins.mqtt.ops.operating import banned, enforce, kick
from lakemq.plugins.mqtt.ops.reports import client_report, client_summary, slow_report
from lakemq.plugins.mqtt.ops.retained_routes import RetainedRoutes
from lakemq.plugins.mqtt.routing.bans import KINDS, Ban, check_ban
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.state.sessions import Session


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
    broker: Broker

    @property
    def node_id(self) -> str:
        """Of the node."""

    @property
    def journal(self) -> BanStore:
        """Where bans are stored."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC; never goes back."""

    def after(self) -> None:
        """Carry out what the hub wants done."""


class MqttAdmin:
    """Routes under `/api/v1/mqtt/`. Clients, slow ones and bans for flapping are each node's own;
    bans of operators hold on all nodes."""

    def __init__(self, engine: AdministeredEngine) -> None:
        self._engine = engine

    @property
    def _hub(self) -> Hub:
        return self._engine.hub

    def routes(self) -> Sequence[AnyRoute]:
        """The routes, for the node's admin API."""
        one = "mqtt/clients/{client_id}"
        retained = RetainedRoutes(
            lambda: self._engine.hub,
            lambda: self._engine.node_id,
            lambda: self._engine.now_ms(),
            lambda: self._engine.after(),
        )
        return [
            *retained.routes(),
            self._clients(),
            self._subscriptions(),
            AdminRoute("GET", one, self.client, ClientAnswer, OwnQuery, own=True),
            AdminRoute("DELETE", one, self.kick, Kicked, KickQuery, own=True),
            AdminRoute("GET", "mqtt/explain", self.explain, MqttExplained, ExplainQuery, own=True),
            self._slow(),
            AdminRoute("DELETE", "mqtt/slow", self.forget_slow, None, EveryQuery, own=True),
            self._bans(),
            AdminRoute("POST", "mqtt/bans", self.ban, BanMade, OwnQuery, BanBody, own=True),
            AdminRoute("DELETE", "mqtt/bans/{kind}/{value}", self.lift, None, EveryQuery, own=True),
        ]

    # -- lists

    def _clients(self) -> AdminListing[Session]:
        async def items(request: AdminRequest) -> Sequence[Session]:
            # A copy, since clients come and go between the turns of the loop.
            return list(self._hub.sessions.values())

        def wanted(session: Session, request: AdminRequest) -> bool:
            asked = expect(request.asked, ClientQuery)
            online = session.connection is not None
            return asked.connected in (None, online) and session.client_id.startswith(asked.prefix)

        async def rows(sessions: Sequence[Session], request: AdminRequest) -> list[ClientRow]:
            node = self._engine.node_id
            return [ClientRow(node=node, **client_summary(one)) for one in sessions]

        return AdminListing(
            "mqtt/clients", ClientRow, items, rows, lambda one: one.client_id,
            {
                "client_id": lambda one: one.client_id,
                "principal": lambda one: one.principal.name,
                "subscriptions": lambda one: len(one.subscriptions),
                "inflight": lambda one: len(one.outbound.inflight),
                "queued": lambda one: len(one.outbound.queue or ()),
                "dropped": lambda one: one.outbound.dropped,
            },
            keep=wanted, query=ClientQuery, own=True,
            summary="List MQTT clients and their sessions, connected or not.",
        )  # fmt: skip

    def _subscriptions(self) -> AdminListing[tuple[str, int]]:
        async def items(request: AdminRequest) -> Sequence[tuple[str, int]]:
            session = self._session(request)
            return [(text, one.options) for text, one in session.subscriptions.items()]

        async def rows(
            found: Sequence[tuple[str, int]], request: AdminRequest
        ) -> list[SubscriptionRow | None]:
            known = self._session(request).subscriptions
            return [
                _subscription(text, options, known[text].identifier) if text in known else None
                for text, options in found
            ]

        return AdminListing(
            "mqtt/clients/{client_id}/subscriptions", SubscriptionRow, items, rows,
            lambda one: one[0], {"filter": lambda one: one[0]}, query=OwnPageQuery, own=True,
            summary="List the subscriptions of an MQTT client.",
        )  # fmt: skip

    def _slow(self) -> AdminListing[dict[str, Any]]:
        async def items(request: AdminRequest) -> Sequence[dict[str, Any]]:
            return slow_report(self._hub, self._engine.now_ms())

        async def rows(found: Sequence[dict[str, Any]], request: AdminRequest) -> list[SlowRow]:
            return [SlowRow(node=self._engine.node_id, **one) for one in found]

        return AdminListing(
            "mqtt/slow", SlowRow, items, rows, lambda one: str(one["client_id"]),
            {
                "latency_ms": lambda one: int(one["latency_ms"]),
                "client_id": lambda one: str(one["client_id"]),
            },
            query=OwnPageQuery, own=True, descending=True,
            summary="List slow MQTT subscribers, slowest first.",
        )  # fmt: skip

    def _bans(self) -> AdminListing[Ban]:
        async def items(request: AdminRequest) -> Sequence[Ban]:
            return list(self._hub.bans.list_all(self._engine.now_ms()))

        async def rows(bans: Sequence[Ban], request: AdminRequest) -> list[BanRow]:
            return [BanRow(node=self._engine.node_id, **asdict(one)) for one in bans]

        return AdminListing(
            "mqtt/bans", BanRow, items, rows, lambda one: f"{one.kind} {one.value}",
            {"value": lambda one: one.value, "kind": lambda one: one.kind},
            query=OwnPageQuery, own=True,
            summary="List bans that hold now, of operators and for flapping.",
        )  # fmt: skip

    # -- one

    def _session(self, asked: AdminRequest) -> Session:
        client_id = asked.path["client_id"]
        session = self._hub.sessions.get(client_id)
        if session is None:
            raise UnknownClient(f"there is no client {client_id!r} on {self._engine.node_id}")
        return session

    async def client(self, asked: AdminRequest) -> ClientAnswer:
        """Describe an MQTT client. Raises UnknownClient."""
        return ClientAnswer(node=self._engine.node_id, **client_report(self._session(asked)))

    async def kick(self, asked: AdminRequest) -> Kicked:
        """End a client's connection; with `session=true` its session, too."""
        session, query = self._session(asked), expect(asked.asked, KickQuery)
        was_connected = session.connection is not None
        kick(self._hub, session, self._engine.now_ms(), end=query.session)
        self._engine.after()
        return Kicked(disconnected=was_connected, session_ended=query.session)

    async def explain(self, asked: AdminRequest) -> MqttExplained:
        """Tell what one node knows of a message: refusals, its binding, deliveries and drops."""
        engine = self._engine
        explainer = Explainer(
            self._hub, engine.node_id, engine.broker.verdict, partial(asyncio.sleep, 0)
        )
        return await explainer.explain(expect(asked.asked, ExplainQuery))

    async def forget_slow(self, asked: AdminRequest) -> object:
        """Forget which clients were slow, on one node or on all."""
        self._hub.delivery.slow.clear()
        return {}

    async def ban(self, asked: AdminRequest) -> BanMade:
        """Let a client, user or address connect no more, and end its connections: at once on the
        node that is asked, which counts them, within moments on the others."""
        given = expect(asked.given, BanBody)
        now_ms = self._engine.now_ms()
        until_ms = None if given.seconds is None else now_ms + 1000 * given.seconds
        ban = check_ban(Ban(given.kind, given.value, until_ms, given.why[:200]))
        # Counted now: who follows what is written may end them before it is answered.
        ended = len(banned(self._hub, ban, now_ms))
        # On disk first: an operator who is answered need not ban again after a crash.
        await self._engine.journal.keep_ban(ban.kind, ban.value, ban)
        self._hub.bans.impose(ban)
        enforce(self._hub, ban, now_ms)
        self._engine.after()
        return BanMade(node=self._engine.node_id, **asdict(ban), disconnected=ended)

    async def lift(self, asked: AdminRequest) -> object:
        """Lift a ban of an operator, on all nodes. Raises UnknownBan."""
        kind, value = asked.path["kind"], asked.path["value"]
        if kind not in KINDS or not self._hub.bans.knows(kind, value):
            raise UnknownBan(f"{kind} {value} is not banned, or by the configuration")
        await self._engine.journal.keep_ban(kind, value, None)
        self._hub.bans.lift(kind, value)
        return {}


def _subscription(text: str, options: int, identifier: int | None) -> SubscriptionRow:
    return SubscriptionRow(
        filter=text,
        qos=options & 3,
        no_local=bool(options & 4),
        retain_as_published=bool(options & 8),
        identifier=identifier or None,
    )
