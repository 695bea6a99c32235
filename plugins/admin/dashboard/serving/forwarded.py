"""Requests that a known proxy has passed on."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from lakemq.plugins.admin.proxies import HEADER, Proxies


class Forwarded:
    """ASGI: of such a request, the visitor's address is the client's, and its scheme the one that
    the visitor's browser used."""

    def __init__(self, app: ASGIApp, proxies: Proxies) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        client = scope.get("client")
        if client is not None and client[0] in self._proxies:
            headers = Headers(scope=scope)
            visitor = self._proxies.visitor(client[0], headers.getlist(HEADER))
            scheme = headers.get("x-forwarded-proto", "")
            scope = {**scope, "client": (visitor, client[1])}
            if scheme in ("http", "https"):
                scope["scheme"] = scheme
        await self._app(scope, receive, send)
