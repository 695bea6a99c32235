"""What pages have in common: asking the API, templates, forms."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import AdminClient, Answer, ApiProblem
from lakemq.plugins.admin.dashboard.guard import COOKIE, Form, Refused, checked_form
from lakemq.plugins.admin.dashboard.options import Credentials, DashboardOptions
from lakemq.plugins.admin.dashboard.poller import Poller
from lakemq.plugins.admin.dashboard.serving.attempts import LoginAttempts
from lakemq.plugins.admin.dashboard.sessions import Session, Sessions
from lakemq.plugins.admin.dashboard.tables import Shown, Table, as_csv, asked_of, query_of, shown_of

_log = logging.getLogger(__name__)


class Link(NamedTuple):
    """Of the navigation."""

    path: str
    label: str
    key: str
    """`g` and this key go there."""
    also: tuple[str, ...] = ()
    """Paths of other pages that are found there."""

    def holds(self, here: str) -> bool:
        """Whether a page is this one, or found there."""
        if self.path == "/":
            return here == "/"
        return here.startswith((self.path, *self.also))


NAVIGATION: Final[Sequence[tuple[str, Sequence[Link]]]] = (
    ("See", (
        Link("/", "Overview", "o"), Link("/topics", "Topics", "t", ("/topic-", "/partitions")),
        Link("/messages", "Messages", "m"), Link("/explain", "Explain", "e"),
        Link("/ledger", "Ledger", "l"),
    )),
    ("Flow", (
        Link("/clients", "Clients", "c", ("/bans", "/retained", "/bridges")),
        Link("/groups", "Groups", "q"),
        Link("/queues", "Queues", "w"), Link("/schemas", "Schemas", "s", ("/schema-",)),
        Link("/transactions", "Transactions", "x", ("/schedules",)),
        Link("/exports", "Exports", "d"),
    )),
    ("Run", (
        Link("/cluster", "Cluster", "n"), Link("/access", "Access", "u", ("/keys",)),
        Link("/plugins", "Plugins", "p"), Link("/audit", "Audit", "a"),
    )),
)  # fmt: skip
MQTT_VIEWS: Final = (
    ("/clients", "Clients"), ("/clients-slow", "Slow clients"), ("/bans", "Bans"),
    ("/retained", "Retained"), ("/bridges", "Bridges"),
)  # fmt: skip
"""Pages beside that of MQTT's clients."""
Page = Callable[[Request], Awaitable[Response]]
Change = Callable[[Request, Form], Awaitable[Response]]


@dataclass(frozen=True)
class Site:
    """The dashboard, for its pages."""

    options: DashboardOptions
    client: AdminClient
    sessions: Sessions
    poller: Poller
    templates: Environment
    attempts: LoginAttempts = field(default_factory=LoginAttempts)

    # -- the API, as who is logged in

    async def get(
        self, request: Request, path: str, query: Mapping[str, str] | None = None
    ) -> Answer:
        """Raises ApiProblem."""
        return await self.client.get(caller_of(request), path, query)

    async def change(
        self,
        request: Request,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        """Raises ApiProblem."""
        return await self.client.call(caller_of(request), method, path, query, body)

    async def try_get(
        self, request: Request, path: str, query: Mapping[str, str] | None = None
    ) -> Answer:
        """None: the API refused or did not answer this, which is a part of a page."""
        try:
            return await self.get(request, path, query)
        except ApiProblem as problem:
            if problem.status == 401:
                raise
            return None

    async def may(self, request: Request, operation: str, kind: str, name: str) -> bool:
        """Whether the caller may do that; true where nothing tells: the form says it then."""
        query = {"operation": operation, "resource": f"{kind}:{name}"}
        found = await self.try_get(request, "whoami/may", query)
        return found is None or bool(found["allowed"])

    # -- answers

    def page(
        self, request: Request, template: str, title: str, *, status: int = 200, **values: Any
    ) -> Response:
        """A whole page."""
        session = session_of(request)
        notes, session.notes = session.notes, []
        text = self.templates.get_template(template).render(
            title=title, session=session, navigation=NAVIGATION, here=request.url.path,
            notes=notes, csrf=session.csrf, **values,
        )  # fmt: skip
        return HTMLResponse(text, status)

    async def table(
        self, request: Request, table: Table, template: str, title: str, **values: Any
    ) -> Response:
        """A page with a table; its rows alone for htmx, CSV for `format=csv`."""
        rows = await self.rows(request, table)
        if request.query_params.get("format") == "csv":
            return PlainTextResponse(
                as_csv(rows), media_type="text/csv",
                headers={"Content-Disposition": f'attachment; filename="{table.noun}.csv"'},
            )  # fmt: skip
        if "hx-request" in request.headers:
            text = self.templates.get_template("rows.html").render(shown_rows=rows)
            return HTMLResponse(text)
        return self.page(request, template, title, shown_rows=rows, **values)

    async def rows(self, request: Request, table: Table) -> Shown:
        """What is asked of a table. Raises ApiProblem."""
        asked = asked_of(request, table)
        answer = await self.get(request, table.path, query_of(table, asked))
        return shown_of(table, request.url.path, asked, answer)

    def done(self, request: Request, to: str, text: str) -> Response:
        """After a change: the page `to`, which says so."""
        session_of(request).note("ok", text)
        return RedirectResponse(to, 303)

    # -- routes

    def get_route(self, path: str, page: Page) -> Route:
        """Of a page."""
        return Route(path, self._answered(page), methods=["GET"])

    def post_route(self, path: str, change: Change) -> Route:
        """Of a form. What the API refuses is said by the page that the form is on."""

        async def carry_out(request: Request) -> Response:
            form = await checked_form(request)
            try:
                return await change(request, form)
            except ApiProblem as problem:
                if problem.status == 401:
                    raise
                session_of(request).note("bad", f"Refused: {problem.detail}")
                return RedirectResponse(_page_of(request), 303)

        return Route(path, self._answered(carry_out), methods=["POST"])

    def _answered(self, page: Page) -> Page:
        async def answer(request: Request) -> Response:
            try:
                return await page(request)
            except Refused as refused:
                return PlainTextResponse(f"Refused: {refused}.", 403)
            except ApiProblem as problem:
                if problem.status == 401:
                    return self.logged_out(request)
                return self.page(
                    request, "problem.html", "This page can't be shown", status=problem.status,
                    problem=problem,
                )  # fmt: skip

        return answer

    async def failed(self, request: Request, error: Exception) -> Response:
        """Where no page is found, or one has a defect."""
        if isinstance(error, HTTPException):
            problem = ApiProblem(error.status_code, "UNKNOWN_PAGE", "There is no such page.")
        else:
            problem = ApiProblem(500, "INTERNAL", "This is a defect: the dashboard's log has more.")
        if getattr(request.state, "session", None) is None:
            return PlainTextResponse(problem.detail, problem.status)
        title = "This page can't be shown"
        return self.page(request, "problem.html", title, status=problem.status, problem=problem)

    def logged_out(self, request: Request) -> Response:
        """The broker no longer takes these credentials, or the user is done."""
        self.sessions.close(session_of(request).token)
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE)
        return answer


def session_of(request: Request) -> Session:
    """Of who asks; pages behind the guard always have one."""
    found: Session = request.state.session
    return found


def caller_of(request: Request) -> Credentials:
    """As whom the API is asked, and from where."""
    return replace(session_of(request).credentials, host=host_of(request))


def host_of(request: Request) -> str:
    """Address of the visitor."""
    return request.client.host if request.client else ""


def _page_of(request: Request) -> str:
    """The page that sent a form, on this site."""
    try:
        found = urlsplit(request.headers.get("referer", ""))
    except ValueError:
        return "/"
    if found.netloc.lower() != request.headers["host"].lower() or not found.path.startswith("/"):
        return "/"
    path = "/" + found.path.lstrip("/")
    return f"{path}?{found.query}" if found.query else path


def number_of(text: str, default: int, least: int = 0, most: int = 2**62) -> int:
    """A whole number of a query; the default where there is none that fits."""
    try:
        found = int(text)
    except ValueError:
        return default
    return found if least <= found <= most else default
