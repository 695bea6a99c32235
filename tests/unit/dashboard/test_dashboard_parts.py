"""Goal: logins end and are bounded, rates are right across restarts, CSV can't be a formula."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message, Receive
from typer import Typer
from typer.testing import CliRunner

from lakemq.broker_core.api.errors import ConfigError
from lakemq.plugins.admin.dashboard import application, decoding, rendering
from lakemq.plugins.admin.dashboard.client import AdminClient, ApiProblem
from lakemq.plugins.admin.dashboard.command import dashboard
from lakemq.plugins.admin.dashboard.guard import Guard
from lakemq.plugins.admin.dashboard.metrics import ALL_SERIES, WANTED, History
from lakemq.plugins.admin.dashboard.options import Credentials, DashboardOptions
from lakemq.plugins.admin.dashboard.pages.overview import _of_plugins
from lakemq.plugins.admin.dashboard.poller import STREAMS_OF_ONE_MAX, Poller
from lakemq.plugins.admin.dashboard.rendering import duration, moment, short, shown, size
from lakemq.plugins.admin.dashboard.serving import server
from lakemq.plugins.admin.dashboard.sessions import SESSION_MAX_MS, Session, Sessions
from lakemq.plugins.admin.dashboard.site import NAVIGATION
from lakemq.plugins.admin.dashboard.tables import Column, Table, as_csv, shown_of
from lakemq.plugins.admin.resources.metrics import totals

STORED = "lakemq_journal_appended_records_total"
CLIENTS = "lakemq_mqtt_connections"


class Clock:
    now_ms = 0


def sessions_of(clock: Clock) -> Sessions:
    numbers = itertools.count()
    return Sessions(lambda: clock.now_ms, lambda: f"token-{next(numbers)}")


def test_a_session_ends_after_twelve_hours() -> None:
    clock = Clock()
    sessions = sessions_of(clock)
    made = sessions.open(Credentials("ann", "x"), "ann", (), ("describe",))
    clock.now_ms = SESSION_MAX_MS - 1
    assert sessions.find(made.token) is made
    clock.now_ms = SESSION_MAX_MS
    assert sessions.find(made.token) is None and len(sessions) == 0


def test_sessions_are_bounded_and_the_oldest_ends() -> None:
    sessions = sessions_of(Clock())
    made = [sessions.open(Credentials(), str(n), (), ()) for n in range(1001)]
    assert len(sessions) == 1000 and sessions.find(made[0].token) is None


def test_one_user_ends_no_session_of_others() -> None:
    sessions = sessions_of(Clock())
    root = sessions.open(Credentials("root", "x"), "root", (), ("describe",))
    # Pages of other sites can have a browser open these, where the broker asks for no login.
    made = [sessions.open(Credentials(), "anonymous", (), ()) for _ in range(2000)]
    assert sessions.find(root.token) is root and len(sessions) == 51
    assert [sessions.find(made[at].token) is not None for at in (-51, -50, -1)] == [
        False, True, True,
    ]  # fmt: skip


def test_figures_are_asked_for_as_the_newest_who_may() -> None:
    sessions = sessions_of(Clock())
    assert sessions.newest("describe") is None
    first = sessions.open(Credentials("a", "x"), "a", (), ("describe",))
    sessions.open(Credentials("b", "x"), "b", (), ())
    assert sessions.newest("describe") is first


def test_a_column_may_show_nothing() -> None:
    assert [shown("", kind) for kind in ("duration", "time", "number", "text")] == [""] * 4
    assert (shown(None, "duration"), shown(None, "time"), shown(0, "number")) == (
        "for ever", "–", "0"
    )  # fmt: skip


def test_a_form_is_of_one_session() -> None:
    sessions = sessions_of(Clock())
    one, other = (sessions.open(Credentials(), "a", (), ()) for _ in range(2))
    assert one.fits(one.csrf) and not one.fits(other.csrf) and not one.fits("")


def test_rates_are_added_over_nodes_and_survive_a_restart() -> None:
    history = History()
    history.add(0.0, {"n1": {STORED: 100.0}, "n2": {STORED: 10.0}})
    assert history.last is not None and history.last["stored"] is None
    history.add(5.0, {"n1": {STORED: 150.0}, "n2": {STORED: 20.0}})
    assert history.last["stored"] == 12.0
    history.add(10.0, {"n1": {STORED: 5.0}})
    assert history.last["stored"] == 1.0
    history.add(15.0, {"n1": {STORED: 5.0}, "n2": {STORED: 1000.0}})
    assert history.last["stored"] == 0.0, "what n2 did while no one looked is no rate"


def test_an_hour_is_kept() -> None:
    history = History()
    for number in range(1000):
        history.add(5.0 * number, {"n1": {"lakemq_mqtt_connections": 1.0}})
    columns = history.columns()
    assert len(columns["t"]) == len(columns["clients"]) == 720
    assert columns["t"][-1] == 4995.0


def test_metrics_are_added_over_their_attributes() -> None:
    text = (
        f'# HELP {STORED} x\n{STORED}{{topic="a b}}"}} 2.0\n{STORED}{{topic="c"}} 3\n'
        "other_total 7\nlakemq_mqtt_connections{} oops\n"
    )
    assert totals(text, bool) == {STORED: 5.0, "other_total": 7.0}
    assert totals(text, WANTED.__contains__) == {STORED: 5.0}


def test_plots_show_metrics_that_there_are() -> None:
    listed = Path(__file__).parents[3] / "docs/metrics.md"
    names = {name for series in ALL_SERIES for name in series.metrics}
    assert {name for name in names if f"`{name}`" not in listed.read_text()} == set()


async def test_a_query_that_is_no_text_leads_to_the_login() -> None:
    sent: list[Message] = []

    async def nobody(request: Request) -> None:
        return None

    async def send(message: Message) -> None:
        sent.append(message)

    guard = Guard(Starlette(), DashboardOptions("http://127.0.0.1:1"), nobody)
    scope = {
        "type": "http", "method": "GET", "path": "/topics", "query_string": b"q=\xff",
        "headers": [(b"host", b"127.0.0.1:9705")],
    }  # fmt: skip
    await guard(scope, cast(Receive, None), send)
    assert (sent[0]["status"], dict(sent[0]["headers"])[b"location"][:6]) == (303, b"/login")


@pytest.mark.parametrize(
    ("headers", "statuses"),
    [
        ([], [404]),
        ([(b"x-forwarded-for", b"203.0.113.9")], [303]),
        ([(b"forwarded", b"for=203.0.113.9")], [303]),
    ],
)
async def test_nobody_is_let_in_without_a_login_by_another_server(
    headers: list[tuple[bytes, bytes]], statuses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened(client: AdminClient, sessions: Sessions, who: Credentials) -> Session:
        return sessions.open(who, "anonymous", (), ())

    monkeypatch.setattr(application, "opened", opened)
    app = application.application(DashboardOptions("http://127.0.0.1:1"), "0")
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/no-such-page", "query_string": b"",
        "scheme": "http",
        "headers": [(b"host", b"127.0.0.1:9705"), *headers],
    }  # fmt: skip
    await app(scope, cast(Receive, None), send)
    assert [each["status"] for each in sent if "status" in each] == statuses


def stored(value: str) -> dict[str, object]:
    return {
        "headers": [], "value": value, "value_encoding": "text", "truncated": False, "key": None,
        "key_encoding": "text",
    }  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        "[" * 900 + "]" * 900,
        "[" * 500 + "1," * 1000 + "1" + "]" * 500,
        '{"a": "\\ud800"}',
    ],
)
def test_what_devices_send_fills_no_page(value: str) -> None:
    texts = decoding._shown(stored(value), None)
    assert (texts["value"], texts["kind"]) == (value, "JSON")
    assert decoding._shown(stored('{"a":[1]}'), None)["value"] == '{\n  "a": [\n    1\n  ]\n}'


def test_a_saved_list_holds_no_formula() -> None:
    table = Table("x", (Column("name", "Name"), Column("lag", "Lag", "number")), "things", "none")
    meta = {"next": None, "total": 1, "as_of": "2026-11-22T17:18:38.887Z", "missing": []}
    page = shown_of(table, "/x", {}, {"data": [{"name": "=1+1", "lag": -3}], "meta": meta})
    assert as_csv(page).splitlines() == ["Name,Lag", "'=1+1,-3"]


def test_every_page_is_found_in_the_navigation() -> None:
    app = application.application(DashboardOptions("http://127.0.0.1:1"), "0")
    pages = [route.path for route in app.routes if isinstance(route, Route) and "GET" in (
        route.methods or ()
    )]  # fmt: skip
    links = [link for _, links in NAVIGATION for link in links]
    hidden = {"/livez", "/login", "/attention", "/history", "/events"}
    found = {path: [link.label for link in links if link.holds(path)] for path in pages}
    assert [path for path, labels in found.items() if len(labels) != 1] == [
        path for path in pages if path in hidden
    ]


async def test_a_defect_of_a_page_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def opened(client: AdminClient, sessions: Sessions, who: Credentials) -> Session:
        return sessions.open(who, "anonymous", (), ())

    async def get(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(application, "opened", opened)
    monkeypatch.setattr(AdminClient, "get", get)
    app = application.application(DashboardOptions("http://127.0.0.1:1"), "0")
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/topics", "query_string": b"",
        "scheme": "http", "headers": [(b"host", b"127.0.0.1:9705")],
    }  # fmt: skip
    with pytest.raises(ZeroDivisionError):  # the server logs it
        await app(scope, cast(Receive, None), send)
    assert sent[0]["status"] == 500 and b"This is a defect" in sent[1]["body"]


def test_other_machines_need_tls() -> None:
    DashboardOptions("http://127.0.0.1:1").check()
    with pytest.raises(ConfigError, match="--serve-cert"):
        DashboardOptions("http://127.0.0.1:1", "0.0.0.0").check()
    DashboardOptions("http://127.0.0.1:1", "0.0.0.0", insecure=True).check()


def test_values_are_short_and_exact() -> None:
    assert (short(12345), short(999), short(1.25), short(None)) == ("12.3 k", "999", "1.2", "–")
    assert (size(999), size(7_800_000)) == ("999 B", "7.8 MB")
    assert (duration(None), duration(604_800_000), duration(1500)) == ("for ever", "7 d", "1.5 s")
    assert moment(1_795_367_831_176) == "2026-11-22 17:17:11.176"
    assert moment(10**17) == "100000000000000000 ms"


@pytest.mark.parametrize("there", [True, False])
def test_a_checkout_without_scripts_is_told_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setattr(rendering, "has_scripts", lambda: there)
    monkeypatch.setattr(server, "serve", lambda *_, **__: None)
    app = Typer()
    app.command()(dashboard)
    told = CliRunner().invoke(app, [])
    assert told.exit_code == 0 and ("make dashboard-assets" in told.stderr) != there


class Api:
    """An admin API of a cluster where a node has registered an address of its own choice."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def get(self, who: Credentials, path: str, query: Mapping[str, str]) -> Any:
        self.asked.append(path)
        rows = [{"node": name, "totals": {CLIENTS: 1.0}} for name in ("n1", "n2")]
        return {"data": rows, "meta": {"missing": [{"node": "n3", "reason": "no answer"}]}}


async def test_figures_of_all_nodes_come_from_the_one_that_is_configured() -> None:
    api = Api()
    poller = Poller(cast(AdminClient, api), lambda: Credentials("root", "x"), 10)
    await poller.poll()
    assert api.asked == ["metrics"]
    assert poller.failed == "n3: no answer", "the page says it"
    assert poller.history.last is not None and poller.history.last["clients"] == 2.0


async def test_streams_are_bounded_by_user_and_in_all() -> None:
    poller = Poller(cast(AdminClient, Api()), lambda: None, STREAMS_OF_ONE_MAX + 1)
    streams = [poller.stream("a") for _ in range(STREAMS_OF_ONE_MAX)]
    for each in streams:
        assert await anext(each) == ": begins\n\n"
    assert not poller.has_room("a") and poller.has_room("b")
    assert [line async for line in poller.stream("a")] == [], "also of those that began together"
    other = poller.stream("b")
    await anext(other)
    assert not poller.has_room("c")
    await other.aclose()
    assert poller.has_room("c")


@pytest.mark.parametrize("text", [b"<html>", b"\xff", b"[" * 100_000])
async def test_what_is_no_admin_api_is_said(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered(*_: object) -> bytes:
        return text

    monkeypatch.setattr(AdminClient, "_bytes", answered)
    client = AdminClient(DashboardOptions("http://127.0.0.1:1"))
    with pytest.raises(ApiProblem, match=r"127.0.0.1:1 is no admin API"):
        await client.get(Credentials(), "cluster")
    await Poller(client, Credentials, 10).poll()  # it goes on


def test_a_quarantined_plugin_needs_attention() -> None:
    row = {"name": "stamp", "node": "n1", "error": "", "enabled": True}
    quarantine = {"topic": "t", "reason": "KeyError: 1", "records": "refused", "retry_s": 1.0}
    (found,) = _of_plugins([{**row, "quarantines": [quarantine]}, row])
    assert found.state == "quarantined"
    assert found.what == (
        "plugin stamp of n1 is quarantined for topic t, records are refused: KeyError: 1"
    )
    (found,) = _of_plugins([{**row, "quarantines": [{**quarantine, "topic": ""}]}])
    assert "for all topics" in found.what
    (found,) = _of_plugins([{**row, "error": "no module"}])
    assert (found.state, found.what) == ("failed", "plugin stamp of n1: no module")
