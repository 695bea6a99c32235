"""Requests of HTTP: health, metrics, and the admin API below `/api/v1/`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.routes import OCTETS, Download
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import Principal
from lakemq.plugins.admin.api.joined_metrics import joined, siblings
from lakemq.plugins.admin.api.openapi import Document
from lakemq.plugins.admin.api.problems import CONTENT_TYPE, Problem, problem_of
from lakemq.plugins.admin.api.service import AdminService, Call
from lakemq.plugins.admin.http.access import PRINCIPAL, AdminAccess, context_of
from lakemq.plugins.admin.http.health import PartitionHealth
from lakemq.plugins.admin.resources.schema_registry.errors import error_body
from lakemq.plugins.admin.resources.schema_registry.routes import ROOT as SCHEMA_REGISTRY

_log = logging.getLogger(__name__)
PREFIX: Final = "/api/v1/"
_BODY_MAX_S: Final = 10.0
_PART_MAX_S: Final = 30.0
"""How long a part of a download may take to be sent: who takes none holds files open."""
_METRICS_FRESH_MS: Final = 1_000
"""`/metrics` is made at most once in this time, however often it is asked for."""
_GET: Final = ("GET", "HEAD")
_FIXED: Final = ("/healthz", "/livez", "/readyz", "/metrics", f"{PREFIX}openapi.json")
"""Paths beside the table of routes."""
Answered = Callable[[web.BaseRequest, bool], None]
"""Told of each answer, and whether its caller has authenticated."""


class AdminApplication:
    """What aiohttp calls."""

    def __init__(
        self,
        node: AdministeredNode,
        access: AdminAccess,
        service: AdminService,
        health: PartitionHealth,
        document: Document,
    ) -> None:
        self._node = node
        self._access = access
        self._service = service
        self._health = health
        self._document = document
        self._metrics: tuple[int, bytes, str] | None = None
        self._answered: Answered = lambda request, authenticated: None

    def application(self, body_max_bytes: int, answered: Answered) -> web.Application:
        """For an aiohttp server."""
        self._answered = answered
        middlewares: list[Middleware] = [_counted(answered), _problems]
        app = web.Application(client_max_size=body_max_bytes, middlewares=middlewares)
        answers = (self._live, self._live, self._ready, self._metrics_text, self._openapi)
        for path, answer in zip(_FIXED, answers, strict=True):
            app.router.add_get(path, answer)
        app.router.add_route("*", "/{path:.*}", self._api)
        return app

    async def _live(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        if not self._node.ready:
            return web.json_response({"status": "starting"}, status=503)
        if await self._health.current():
            return web.json_response({"status": "ready"})
        status: dict[str, Any] = {"status": "degraded"}
        # /readyz is open to load balancers; names of topics are not for all.
        if await self._access.may_describe(request):
            status["partitions"] = self._health.bad
        return web.json_response(status, status=503)

    async def _metrics_text(self, request: web.Request) -> web.Response:
        principal = await self._access.identify(request)
        self._access.check_cluster(request)
        now_ms = self._node.now_ms()
        if self._metrics is None or not 0 <= now_ms - self._metrics[0] < _METRICS_FRESH_MS:
            text, content_type = self._node.metrics()
            broker = self._node.broker
            others = siblings(broker.nodes(), self._node.node_id) if broker is not None else []
            if others:
                asking = (self._metrics_of(each, principal, request) for each in others)
                found = dict(zip(others, await asyncio.gather(*asking), strict=True))
                text = joined({self._node.node_id: text.decode(), **found}).encode()
            self._metrics = (now_ms, text, content_type)
        _, text, content_type = self._metrics
        return web.Response(body=text, headers={"Content-Type": content_type})

    async def _metrics_of(self, node: str, principal: Principal, request: web.Request) -> str:
        """Nothing of a process that does not answer: it dies, or begins."""
        path, context = f"nodes/{node}/metrics", context_of(request)
        try:
            reply = await self._service.serve(Call("GET", path, [], b"", "", principal, context))
        except (Problem, LakeMQError) as error:
            _log.debug("no metrics of %s: %s", node, error)
            return ""
        return str(json.loads(reply.body)["text"])

    async def _openapi(self, request: web.Request) -> web.Response:
        await self._access.identify(request)
        return web.Response(body=await self._document.json(), content_type="application/json")

    async def _api(self, request: web.Request) -> web.StreamResponse:
        principal = await self._access.identify(request)
        path = request.rel_url.raw_path
        if path in _FIXED:
            raise Problem(
                405, "METHOD_NOT_ALLOWED", f"{request.method} is not for this path; it takes GET",
                headers={"Allow": "GET, HEAD"},
            )  # fmt: skip
        if not path.startswith(PREFIX):
            raise Problem(404, "UNKNOWN_PATH", f"there is no such path; the API is at {PREFIX}")
        method = request.method
        self._service.table.find(method, path.removeprefix(PREFIX))
        if method not in _GET:
            self._access.check_change(request)
        reply = await self._service.serve(await self._call(request, principal, path))
        headers = {**reply.headers, "Cache-Control": "no-store"}
        if reply.download is not None:
            return await self._sent(request, reply.download, headers)
        if reply.status == 204:
            return web.Response(status=204, headers=headers)
        return web.Response(
            status=reply.status, body=reply.body, headers=headers, content_type=reply.content_type
        )

    async def _sent(
        self, request: web.Request, download: Download, headers: Mapping[str, str]
    ) -> web.StreamResponse:
        """Send a download, of which no more than a part is in memory."""
        response = web.StreamResponse(headers={**headers, "Content-Type": OCTETS})
        response.content_length = download.size
        authenticated = request[PRINCIPAL].kind != "anonymous"
        try:
            async with aclosing(download.content) as content:
                await response.prepare(request)
                async for data in content:
                    async with asyncio.timeout(_PART_MAX_S):
                        await response.write(data)
                    # It is being answered: not a connection that waits for its first request.
                    self._answered(request, authenticated)
                await response.write_eof()
        except (LakeMQError, TimeoutError, ConnectionError) as error:
            # Its length was promised: who gets less knows that it is not whole.
            _log.warning("%s was cut off: %s", download.name, str(error) or type(error).__name__)
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _call(self, request: web.Request, principal: Principal, path: str) -> Call:
        """Raises Problem. Who may not ask costs no memory for a body."""
        short, context = path.removeprefix(PREFIX), context_of(request)
        body = b""
        if request.method not in _GET:
            match = self._service.table.find(request.method, short)
            try:
                self._service.check_right(match.entry.route, match.path, principal, context)
            except LakeMQError:
                pass  # the service refuses it, and keeps that in the audit log
            else:
                body = await _body(request)
        content_type = request.content_type if "Content-Type" in request.headers else ""
        return Call(
            request.method, short, list(request.query.items()), body, content_type, principal,
            context, request.headers.get("Idempotency-Key", ""),
            ", ".join(request.headers.getall("If-Match", ())),
        )  # fmt: skip


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(_BODY_MAX_S):
            return await request.read()
    except TimeoutError:
        raise Problem(
            408, "INVALID_REQUEST", f"the body did not come within {_BODY_MAX_S:.0f} s"
        ) from None


def _counted(answered: Answered) -> Middleware:
    """Notes at the connection of each answer whether it went to an authenticated caller."""

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        finally:
            who = request.get(PRINCIPAL)
            # In `finally`: refusals are answers too.
            answered(request, who is not None and who.kind != "anonymous")

    return count


@web.middleware
async def _problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error as a problem."""
    try:
        return await handler(request)
    except Problem as problem:
        found = problem
    except LakeMQError as error:
        found = problem_of(error)
    except web.HTTPException as error:
        # aiohttp's own: a body that is too large, a method that a fixed path does not take.
        allow = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
        code = "METHOD_NOT_ALLOWED" if error.status == 405 else "INVALID_REQUEST"
        found = Problem(error.status, code, error.text or error.reason, headers=allow)
    except Exception:
        _log.exception("%s %s failed", request.method, request.rel_url.raw_path[:200])
        found = Problem(500, "INTERNAL", "this is a defect; the node's log has more")
    body, content_type = found.body(), CONTENT_TYPE
    if request.rel_url.raw_path.startswith(f"{PREFIX}{SCHEMA_REGISTRY}/"):
        body, content_type = error_body(found), "application/json"
    return web.Response(
        status=found.status, body=body, headers=found.headers, content_type=content_type
    )
