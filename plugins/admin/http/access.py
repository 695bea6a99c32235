"""Who calls, and whether a web page in an operator's browser does. Health is open: load balancers
need it."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from lakemq.broker_core.api.administration.node import CatalogAccess
from lakemq.broker_core.api.authorization_header import read_authorization
from lakemq.broker_core.api.errors import LakeMQError, NotAuthorized
from lakemq.broker_core.api.hosts import is_loopback
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.types import AccessContext, Operation, Principal, Resource
from lakemq.plugins.admin.proxies import HEADER, KNOWN_BY, Proxies

PRINCIPAL: Final = web.RequestKey("principal", Principal)
VISITOR: Final = web.RequestKey("visitor", str)
"""Address that a request is from, also where a proxy has passed it on."""
_SAME_PAGE: Final = ("same-origin", "none")
"""What browsers say of requests of a page of ours, or of no page (the address bar)."""


class AdminAccess:
    """Identifies callers."""

    def __init__(
        self,
        catalog: CatalogAccess,
        hosts: Sequence[str],
        proxies: Proxies,
        dashboard_secret: str,
    ) -> None:
        """`hosts`: host names that anonymous callers may use, besides those of this machine.
        `dashboard_secret`: what this node's dashboard shows."""
        self._catalog = catalog
        self._proxies = proxies
        self._dashboard_secret = dashboard_secret
        self.allow(hosts)

    def allow(self, hosts: Sequence[str]) -> None:
        """Other host names from now on."""
        self._hosts = frozenset(name.lower() for name in hosts)

    async def identify(self, request: web.Request) -> Principal:
        """Authenticate the caller. The Host header of anonymous callers must be an address or a
        known name: a web page could have rebound its own DNS name to this machine. Raises
        NotAuthenticated, NotAuthorized."""
        request[VISITOR] = self._visitor(request)
        principal = await self._catalog.authenticate(_credentials(request))
        request[PRINCIPAL] = principal
        named = _host_of(request)
        if principal.kind == "anonymous" and not (_is_address(named) or named in self._hosts):
            raise NotAuthorized(
                f"anonymous requests are refused for host {named}: list it in admin.hosts"
            )
        return principal

    def _visitor(self, request: web.Request) -> str:
        shown = request.headers.get(KNOWN_BY, "")
        known = hmac.compare_digest(
            shown.encode(errors="surrogateescape"), self._dashboard_secret.encode()
        )
        said = request.headers.getall(HEADER, [])
        return self._proxies.visitor(request.remote or "", said, known=known)

    def check_change(self, request: web.Request) -> None:
        """Check that the caller is not a web page in its browser (CSRF, DNS rebinding): browsers
        tell where a request comes from, and where no login is needed the Host header must name this
        machine. That the body's type is one that a page can't send without asking first (CORS) is
        checked with the route. Raises NotAuthorized."""
        named = _host_of(request)
        anonymous = request[PRINCIPAL].kind == "anonymous"
        if anonymous and not (is_loopback(named) or named in self._hosts):
            raise NotAuthorized(f"anonymous changes are refused for host {named}")
        site = request.headers.get("Sec-Fetch-Site", "none")
        origin = request.headers.get("Origin", "")
        if site not in _SAME_PAGE or (origin and not _is_origin(origin, request)):
            raise NotAuthorized("changes are refused that a page of another site asks for")

    def check_cluster(self, request: web.Request) -> None:
        """Raises NotAuthorized unless the caller may describe the cluster."""
        self._catalog.authorize(
            request[PRINCIPAL], Operation.DESCRIBE, Resource("cluster", "cluster"),
            context_of(request),
        )  # fmt: skip

    async def may_describe(self, request: web.Request) -> bool:
        """Whether the caller of an open path may see names."""
        try:
            await self.identify(request)
            self.check_cluster(request)
        except LakeMQError:
            return False
        return True


def context_of(request: web.Request) -> AccessContext:
    """Where a request comes from, for rules."""
    return AccessContext("admin", peer_host=request[VISITOR], listener="admin")


def _is_origin(origin: str, request: web.Request) -> bool:
    """Whether a page of this very address asks. `null` is none."""
    try:
        return urlsplit(origin).netloc.lower() == request.host.lower()
    except ValueError:
        return False


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
        "admin", "", request[VISITOR], shown.username, shown.password,
        token=shown.token, listener="admin",
    )  # fmt: skip
