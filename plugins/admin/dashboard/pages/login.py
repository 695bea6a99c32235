"""Login and logout."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import AdminClient, ApiProblem
from lakemq.plugins.admin.dashboard.guard import Form, Refused, cookie_of, read_form
from lakemq.plugins.admin.dashboard.options import Credentials
from lakemq.plugins.admin.dashboard.sessions import Session, Sessions
from lakemq.plugins.admin.dashboard.site import Site, host_of

_FORM_MAX_BYTES: Final = 16 * 1024
"""Anyone can send one."""
_AT_ONCE: Final = 4
"""Logins that the API is asked for: passwords are slow to check, and pages of others wait."""


async def opened(client: AdminClient, sessions: Sessions, who: Credentials) -> Session:
    """A session of who these credentials are for. Raises ApiProblem: the broker refuses them."""
    found = await client.get(who, "whoami")
    return sessions.open(who, found["name"], tuple(found["roles"]), tuple(found["may"]))


class LoginPages:
    """Users are the broker's; the dashboard has none of its own."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._room = asyncio.Semaphore(_AT_ONCE)

    def routes(self) -> Sequence[Route]:
        """Pages and forms."""
        return [
            Route("/login", self._form, methods=["GET"]),
            Route("/login", self._log_in, methods=["POST"]),
            self._site.post_route("/logout", self._log_out),
        ]

    async def _form(self, request: Request) -> Response:
        return self._shown(request.query_params.get("next", ""), "")

    async def _log_in(self, request: Request) -> Response:
        try:
            form = await read_form(request, _FORM_MAX_BYTES)
        except Refused as refused:
            return self._shown("", f"Refused: {refused}.", 400)
        to = _on_this_site(form.get("next", ""))
        name, password = form.get("username", ""), form.get("password", "")
        if not name or not password or ":" in name:  # which ends the name on its way (RFC 7617)
            return self._shown(to, "Give a user, a name without a colon, and its password.", 400)
        host, attempts = host_of(request), self._site.attempts
        if not attempts.begin(host, name, self._site.sessions.now_ms()):
            return self._shown(to, "Too many attempts: try again in a minute.", 429)
        try:
            async with self._room:
                session = await opened(
                    self._site.client, self._site.sessions, Credentials(name, password, host)
                )
        except ApiProblem as problem:
            status = 401 if problem.status == 401 else 502
            return self._shown(to, f"Not logged in: {problem.detail}", status)
        attempts.succeeded(host, name)
        answer = RedirectResponse(to, 303)
        answer.headers["set-cookie"] = cookie_of(session, request.url.scheme)
        return answer

    async def _log_out(self, request: Request, form: Form) -> Response:
        return self._site.logged_out(request)

    def _shown(self, to: str, error: str, status: int = 200) -> Response:
        template = self._site.templates.get_template("login.html")
        text = template.render(to=_on_this_site(to), error=error, local=self._site.options.is_local)
        return HTMLResponse(text, status)


def _on_this_site(path: str) -> str:
    """Where to go after the login: never another site's page. Browsers read `\\` as `/`."""
    if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable():
        return path
    return "/"
