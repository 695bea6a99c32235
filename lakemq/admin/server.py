"""HTTP admin: /healthz, /readyz, /metrics and, as JSON, /api/v1/{node,topics,plugins} and what
listeners add to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lakemq.admin.access import PRINCIPAL, AdminAccess, errors_as_json, tls_of
from lakemq.admin.broker_view import AdminBroker
from lakemq.admin.connections import KEEP_ALIVE_S, AdminConnections, limits_of
from lakemq.broker_core.api.errors import InvalidRequest, StartupError
from lakemq.broker_core.api.ports import AdminRequest, AdminRoute
from lakemq.broker_core.configuration.settings import AdminSettings
from lakemq.broker_core.plugin_host import PluginHost
from lakemq.meta_service.api.types import MetaClient
from lakemq.telemetry import Telemetry

_BODY_MAX_BYTES: Final = 64 * 1024
_BODY_MAX_S: Final = 10.0
_LINGERING_S: Final = 2.0


class AdminListener:
    """Implements the `Listener` port over aiohttp."""

    name = "admin"

    def __init__(
        self,
        *,
        host: str,
        settings: AdminSettings,
        broker: AdminBroker,
        meta: MetaClient,
        plugins: PluginHost,
        telemetry: Telemetry,
        describe_node: Callable[[], dict[str, Any]],
        routes: Sequence[AdminRoute] = (),
    ) -> None:
        self._host = host
        self._settings = settings
        self._tls = tls_of(settings, host)
        self._access = AdminAccess(broker, settings.hosts)
        self._broker = broker
        self._meta = meta
        self._plugins = plugins
        self._telemetry = telemetry
        self._describe_node = describe_node
        self._routes = routes
        self._runner: web.AppRunner | None = None
        self._connections: AdminConnections | None = None
        self.ready = False

    async def start(self) -> None:
        """Listen. StartupError if the port is taken."""
        middlewares: list[Middleware] = [errors_as_json, self._access.middleware()]
        middlewares.insert(0, self._counted())
        app = web.Application(client_max_size=_BODY_MAX_BYTES, middlewares=middlewares)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._readiness)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/api/v1/node", self._node)
        app.router.add_get("/api/v1/plugins", self._plugin_list)
        app.router.add_get("/api/v1/topics", self._topic_list)
        app.router.add_get("/api/v1/topics/{name}", self._topic)
        for route in self._routes:
            app.router.add_route(route.method, f"/api/v1/{route.path}", self._answering(route))
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=1.0, keepalive_timeout=KEEP_ALIVE_S,
            lingering_time=_LINGERING_S,
        )  # fmt: skip
        await runner.setup()
        assert runner.server is not None
        settings = self._settings
        self._connections = AdminConnections(
            runner.server,
            limits_of(settings.connections_max),
            settings.unauthenticated_timeout_ms / 1000,
            self._tls,
        )
        try:
            await self._connections.listen(self._host, settings.port)
        except OSError as error:
            # The runner is set up already: a node that can't start must leave no tasks.
            await runner.cleanup()
            raise StartupError(
                f"admin: cannot listen on {self._host}:{settings.port}: {error.strerror}"
            ) from None
        self._runner = runner

    def addresses(self) -> list[str]:
        """`host:port` of the sockets that are bound; none before `start`."""
        return self._connections.addresses() if self._connections is not None else []

    async def stop(self) -> None:
        """Accept no more, then end the connections; requests under way have 1 s."""
        if self._connections is not None:
            self._connections.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _counted(self) -> Middleware:
        """Notes at the connection of each answer whether it went to an authenticated caller."""

        @web.middleware
        async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            finally:
                if self._connections is not None:
                    who = request.get(PRINCIPAL)
                    known = who is not None and who.kind != "anonymous"
                    # In `finally`: refusals are answers too.
                    self._connections.answered(request, authenticated=known)

        return count

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readiness(self, request: web.Request) -> web.Response:
        if not self.ready:
            return web.json_response({"status": "starting"}, status=503)
        bad = [
            f"{topic.name}/{number}"
            for topic in self._broker.topics()
            for number in range(topic.partitions)
            if self._broker.partition_status(topic.name, number).state not in ("online", "remote")
        ]
        # Partitions in state `remote` are another node's to answer for.
        if bad:
            status: dict[str, Any] = {"status": "degraded"}
            # /readyz is open to load balancers; names of topics are not for all.
            if await self._access.may_describe(request):
                status["partitions"] = bad
            return web.json_response(status, status=503)
        return web.json_response({"status": "ready"})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._telemetry.prometheus_text(),
            headers={"Content-Type": self._telemetry.content_type},
        )

    async def _node(self, request: web.Request) -> web.Response:
        status = await self._meta.status()
        return web.json_response({**self._describe_node(), "meta": asdict(status)})

    async def _plugin_list(self, request: web.Request) -> web.Response:
        return web.json_response(
            [
                {
                    "name": each.name,
                    "version": each.version,
                    "enabled": each.enabled,
                    "hooks": each.hooks,
                    "error": each.error,
                }
                for each in self._plugins.plugins
            ]
        )

    async def _topic_list(self, request: web.Request) -> web.Response:
        names = sorted(
            topic.name
            for topic in self._broker.topics()
            if self._access.may_see(request, topic.name)
        )
        return web.json_response([self._topic_json(name) for name in names])

    async def _topic(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self._access.check_topic(request, name)
        return web.json_response(self._topic_json(name))

    def _topic_json(self, name: str) -> dict[str, Any]:
        topic = self._broker.topic(name)
        return {
            "name": topic.name,
            "topic_id": topic.topic_id,
            "config": asdict(topic.config),
            "partitions": [
                asdict(self._broker.partition_status(name, number))
                for number in range(topic.partitions)
            ],
        }

    def _answering(
        self, route: AdminRoute
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """What serves a listener's route."""

        async def answer(request: web.Request) -> web.StreamResponse:
            body: object = {}
            if route.method != "GET":
                # Before the body is read: who may not change anything costs no memory.
                self._access.check_change(request)
                body = await _json_body(request)
            if not isinstance(body, dict):
                raise InvalidRequest("the body is not a JSON object")
            asked = AdminRequest(request.match_info, request.query, body)
            return web.json_response(await route.answer(asked))

        return answer


async def _json_body(request: web.Request) -> object:
    try:
        async with asyncio.timeout(_BODY_MAX_S):
            text = await request.text()
        return json.loads(text) if text else {}
    except TimeoutError:
        raise InvalidRequest(f"the body did not come within {_BODY_MAX_S:.0f} s") from None
    except RecursionError:
        # json parses nested values recursively: a body of brackets must not reach the log as an
        # internal error.
        raise InvalidRequest("the body is nested too deeply") from None
    except ValueError as error:  # neither UTF-8 nor JSON
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
