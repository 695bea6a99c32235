"""Authentication and authorization of the HTTP admin. Health is open: load balancers need it."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lakemq.admin.broker_view import AdminBroker
from lakemq.broker_core.api.authorization_header import read_authorization
from lakemq.broker_core.api.errors import (
    ConfigError,
    InvalidRequest,
    LakeMQError,
    NotAuthenticated,
    NotAuthorized,
)
from lakemq.broker_core.api.hosts import is_loopback
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.tls_files.server_context import server_context
from lakemq.broker_core.api.types import AccessContext, Operation, Principal, Resource
from lakemq.broker_core.configuration.settings import AdminSettings
from lakemq.meta_service.api.errors import MetaError

OPEN: Final = frozenset({"/healthz", "/readyz"})
PRINCIPAL: Final = web.RequestKey("principal", Principal)


class AdminAccess:
    """A middleware that authenticates every caller, and requires `describe` on the cluster for
    paths that are not about one topic."""

    def __init__(self, broker: AdminBroker, hosts: Sequence[str] = ()) -> None:
        """`hosts`: host names that anonymous callers may use, besides those of this machine."""
        self._broker = broker
        self._hosts = frozenset(name.lower() for name in hosts)

    def may_see(self, request: web.Request, topic: str) -> bool:
        """Whether the caller may describe the topic."""
        try:
            self.check_topic(request, topic)
        except NotAuthorized:
            return False
        return True

    def check_topic(self, request: web.Request, topic: str) -> None:
        """Raises NotAuthorized."""
        self._authorize(request, Resource("topic", topic))

    def check_change(self, request: web.Request) -> None:
        """Check that the caller may alter the cluster, and is not a web page in its browser (CSRF,
        DNS rebinding): a page cannot send JSON without a preflight, and where no login is needed
        the Host header must name this machine. Raises NotAuthorized, InvalidRequest."""
        self._authorize(request, Resource("cluster", "cluster"), Operation.ALTER)
        named = _host_of(request)
        anonymous = request[PRINCIPAL].kind == "anonymous"
        if anonymous and not (is_loopback(named) or named in self._hosts):
            raise NotAuthorized(f"anonymous changes are refused for host {named}")
        if request.content_type != "application/json":
            raise InvalidRequest("Content-Type must be application/json")

    async def may_describe(self, request: web.Request) -> bool:
        """Whether the caller of an open path may see names."""
        try:
            await self._identify(request)
            self._authorize(request, Resource("cluster", "cluster"))
        except LakeMQError:
            return False
        return True

    async def _identify(self, request: web.Request) -> None:
        """Authenticate the caller. The Host header of anonymous callers must be an address or a
        known name: a web page could have rebound its own DNS name to this machine. Raises
        NotAuthenticated, NotAuthorized."""
        principal = await self._broker.authenticate(_credentials(request))
        request[PRINCIPAL] = principal
        named = _host_of(request)
        if principal.kind == "anonymous" and not (_is_address(named) or named in self._hosts):
            raise NotAuthorized(
                f"anonymous requests are refused for host {named}: list it in admin.hosts"
            )

    def _authorize(
        self,
        request: web.Request,
        resource: Resource,
        operation: Operation = Operation.DESCRIBE,
    ) -> None:
        context = AccessContext("admin", peer_host=request.remote or "", listener="admin")
        self._broker.authorize(request[PRINCIPAL], operation, resource, context)

    def middleware(self) -> Middleware:
        """For the application's list of middlewares."""

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path not in OPEN:
                await self._identify(request)
                # Topics are checked one by one, by their own rights.
                if not request.path.startswith("/api/v1/topics"):
                    self._authorize(request, Resource("cluster", "cluster"))
            return await handler(request)

        return check


def _host_of(request: web.Request) -> str:
    """As the caller names this machine, in lower case."""
    try:
        return (request.url.host or "?").lower().rstrip(".")
    except ValueError:
        return "?"


def _is_address(host: str) -> bool:
    """`localhost`, or an IP address."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return is_loopback(host)
    return True


def _credentials(request: web.Request) -> Credentials:
    shown = read_authorization(request.headers.get("Authorization"))
    return Credentials(
        "admin", "", request.remote or "", shown.username, shown.password,
        token=shown.token, listener="admin",
    )  # fmt: skip


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """401 asks browsers and curl for a user."""
    try:
        return await handler(request)
    except (LakeMQError, MetaError) as error:
        headers = {}
        if isinstance(error, NotAuthenticated):
            status = 401
            headers["WWW-Authenticate"] = 'Basic realm="lakemq", charset="UTF-8"'
        elif isinstance(error, NotAuthorized):
            status = 403
        else:
            status = 404 if error.code.startswith("UNKNOWN") else 503 if error.retriable else 400
        body = {"code": error.code, "message": str(error)}
        return web.json_response(body, status=status, headers=headers)


def tls_of(settings: AdminSettings, host: str) -> ssl.SSLContext | None:
    """Raises ConfigError for files that do not fit, and for a host that others reach in plain
    text."""
    if not settings.tls_cert:
        if not (settings.insecure or is_loopback(host)):
            raise ConfigError(
                f"admin: host {host} is reached by other machines: set tls_cert and tls_key, or "
                "set insecure = true"
            )
        return None
    return server_context("admin", settings.tls_cert, settings.tls_key)
