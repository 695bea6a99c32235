"""The ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from lakemq.plugins.admin.dashboard.client import AdminClient, ApiProblem
from lakemq.plugins.admin.dashboard.guard import COOKIE, Guard
from lakemq.plugins.admin.dashboard.options import Credentials, DashboardOptions
from lakemq.plugins.admin.dashboard.pages.access import AccessPages
from lakemq.plugins.admin.dashboard.pages.cluster import ClusterPages
from lakemq.plugins.admin.dashboard.pages.explain import ExplainPages
from lakemq.plugins.admin.dashboard.pages.groups import GroupPages
from lakemq.plugins.admin.dashboard.pages.lists import ListPages
from lakemq.plugins.admin.dashboard.pages.login import LoginPages, opened
from lakemq.plugins.admin.dashboard.pages.messages import MessagePages
from lakemq.plugins.admin.dashboard.pages.mqtt_clients import ClientPages
from lakemq.plugins.admin.dashboard.pages.overview import OverviewPages
from lakemq.plugins.admin.dashboard.pages.pending import PendingPages
from lakemq.plugins.admin.dashboard.pages.queues import QueuePages
from lakemq.plugins.admin.dashboard.pages.retained import RetainedPages
from lakemq.plugins.admin.dashboard.pages.schemas import SchemaPages
from lakemq.plugins.admin.dashboard.pages.topics import TopicPages
from lakemq.plugins.admin.dashboard.poller import Poller
from lakemq.plugins.admin.dashboard.rendering import STATIC, environment
from lakemq.plugins.admin.dashboard.sessions import Session, Sessions
from lakemq.plugins.admin.dashboard.site import Site, host_of

_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Of a request that another server has passed on: who sent it may not be on this machine."""


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def application(options: DashboardOptions, version: str) -> Starlette:
    """For an ASGI server. `version`: of LakeMQ."""
    client = AdminClient(options)
    sessions = Sessions(_now_ms, lambda: secrets.token_urlsafe(32))

    def poller_credentials() -> Credentials | None:
        if options.poller.username:
            return options.poller
        found = sessions.newest("describe")
        return found.credentials if found is not None else None

    poller = Poller(client, poller_credentials, options.connections_max // 2)
    site = Site(options, client, sessions, poller, environment(version))

    async def session_of_request(request: Request) -> Session | None:
        found = sessions.find(request.cookies.get(COOKIE, ""))
        if found is not None or request.method != "GET" or not options.is_local:
            return found
        if any(name in request.headers for name in _FORWARDED):
            return None
        try:  # The broker may ask for no login.
            return await opened(client, sessions, Credentials(host=host_of(request)))
        except ApiProblem:
            return None

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await client.open()
        polling = asyncio.create_task(poller.run())
        try:
            yield
        finally:
            polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await polling
            await client.close()

    return Starlette(
        routes=[*_routes(site), Mount("/static", StaticFiles(directory=STATIC))],
        exception_handlers={404: site.failed, 500: site.failed},
        lifespan=lifespan,
        middleware=[Middleware(Guard, options=options, session_of=session_of_request)],
    )


def _routes(site: Site) -> list[Route]:
    pages = (
        LoginPages, OverviewPages, TopicPages, MessagePages, ClientPages, GroupPages, ClusterPages,
        AccessPages, ListPages, ExplainPages, PendingPages, QueuePages, RetainedPages, SchemaPages,
    )  # fmt: skip
    return [Route("/livez", _live), *(route for each in pages for route in each(site).routes())]


async def _live(request: Request) -> Response:
    return JSONResponse({"status": "ok"})
