"""Login and logout."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import AdminClient, ApiProblem
from lakemq.plugins.admin.dashboard.guard import Form, Refused, cookie_of, read_form
from lakemq.plugins.admin.dashboard.options import Credentials
from lakemq.plugins.admin.dashboard.sessions import Session, Sessions
from lakemq.plugins.admin.dashboard.site import Site


async def opened(client: AdminClient, sessions: Sessions, who: Credentials) -> Session:
    """A session of who these credentials are for. Raises ApiProblem: the broker refuses them."""
    found = await client.get(who, "whoami")
    return sessions.open(who, found["name"], tuple(found["roles"]), tuple(found["may"]))


class LoginPages:
    """Users are the broker's; the dashboard has none of its own."""

    def __init__(self, site: Site) -> None:
        self._site = site

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
            form = await read_form(request)
        except Refused as refused:
            return self._shown("", f"Refused: {refused}.", 400)
        to = _on_this_site(form.get("next", ""))
        name, password = form.get("username", ""), form.get("password", "")
        if not name or not password:
            return self._shown(to, "Give a user and its password.", 400)
        host = request.client.host if request.client else ""
        if not self._site.sessions.may_try(host):
            return self._shown(to, "Too many attempts: try again in a minute.", 429)
        try:
            session = await opened(
                self._site.client, self._site.sessions, Credentials(name, password)
            )
        except ApiProblem as problem:
            status = 401 if problem.status == 401 else 502
            return self._shown(to, f"Not logged in: {problem.detail}", status)
        self._site.sessions.succeeded(host)
        answer = RedirectResponse(to, 303)
        answer.headers["set-cookie"] = cookie_of(session, self._site.options)
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
