"""What stands before every page: headers, host names, sessions, and forms of this site alone."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakemq.broker_core.api.hosts import is_loopback
from lakemq.plugins.admin.dashboard.options import DashboardOptions
from lakemq.plugins.admin.dashboard.sessions import SESSION_MAX_MS, Session

COOKIE: Final = "lakemq_dashboard"
FORM_MAX_BYTES: Final = 2 * 1024 * 1024
_FIELDS_MAX: Final = 200
_OPEN: Final = ("/login", "/static/", "/livez")
_HEADERS: Final = {
    # Nothing of elsewhere, nothing inline: what a record or a name holds can't become a script.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
Form = Mapping[str, str]


class Refused(Exception):
    """A request that no page of this site made. Its text says why."""


class Guard:
    """ASGI: lets through who has a session."""

    def __init__(
        self,
        app: ASGIApp,
        options: DashboardOptions,
        session_of: Callable[[Request], Awaitable[Session | None]],
    ) -> None:
        """`session_of`: of a request; None: a login is needed."""
        self._app = app
        self._options = options
        self._session_of = session_of
        self._hosts = frozenset(name.lower() for name in options.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if not scope["path"].startswith("/static/"):
                    headers["cache-control"] = "no-store"
                if opened is not None and "set-cookie" not in headers:
                    headers["set-cookie"] = cookie_of(opened, scope["scheme"])
            await send(message)

        opened: Session | None = None
        answer = await self._refusal(scope, receive)
        session: Session | None = scope.get("state", {}).get("session")
        if session is not None and Request(scope).cookies.get(COOKIE) != session.token:
            opened = session  # Without a login: the broker asks for none.
        await (answer or self._app)(scope, receive, hardened)

    async def _refusal(self, scope: Scope, receive: Receive) -> Response | None:
        """None: the request may pass."""
        headers = Headers(scope=scope)
        if not self._is_known(headers.get("host", "")):
            # A page of another site could have rebound its own DNS name to this machine.
            return PlainTextResponse("This host name is not known: see --allowed-host.", 421)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("GET and POST are known.", 405, {"Allow": "GET, HEAD, POST"})
        if scope["method"] == "POST" and not _is_own(headers):
            return PlainTextResponse("A page of another site asked for this.", 403)
        if scope["path"].startswith(_OPEN):
            return None
        request = Request(scope, receive)
        session = await self._session_of(request)
        request.state.session = session
        if session is not None:
            return None
        if scope["method"] == "POST" or scope["path"] == "/events":
            return PlainTextResponse("Log in first.", 401)
        asked = scope["path"] + (
            f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
        )
        login = f"/login?next={quote(asked, safe='')}"
        if "hx-request" in headers:
            return Response(status_code=200, headers={"HX-Redirect": login})
        return RedirectResponse(login, 303)

    def _is_known(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if name in self._hosts or is_loopback(name):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def cookie_of(session: Session, scheme: str) -> str:
    """For `Set-Cookie`: no script reads it, and no page of another site sends it. `scheme`: of the
    browser's request."""
    secure = "; Secure" if scheme == "https" else ""
    age_s = SESSION_MAX_MS // 1000
    return f"{COOKIE}={session.token}; HttpOnly; SameSite=Strict; Path=/; Max-Age={age_s}{secure}"


def _is_own(headers: Headers) -> bool:
    """Whether a page of this very address sent a form, as browsers tell."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    try:
        return origin is None or urlsplit(origin).netloc.lower() == headers["host"].lower()
    except ValueError:
        return False


async def read_form(request: Request, bytes_max: int = FORM_MAX_BYTES) -> dict[str, str]:
    """Fields of a form; of equal names the last one. Raises Refused: too large."""
    parts, count = [], 0
    async for part in request.stream():
        count += len(part)
        if count > bytes_max:
            raise Refused(f"the form has more than {bytes_max} bytes")
        parts.append(part)
    try:
        text = b"".join(parts).decode()
        # Browsers send the line breaks of a text area as CR LF.
        return {
            name: value.replace("\r\n", "\n")
            for name, value in parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS_MAX)
        }
    except ValueError:
        raise Refused("the form can't be read") from None


async def checked_form(request: Request) -> dict[str, str]:
    """The same, of a page of this session. Raises Refused: its token is another one."""
    form = await read_form(request)
    session: Session = request.state.session
    if not session.fits(form.pop("csrf", "")):
        raise Refused("this form is of another login: load the page again")
    return form
