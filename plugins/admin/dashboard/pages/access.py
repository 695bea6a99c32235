"""Users, rules, quotas, API keys, and who may do what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import ApiProblem, segment
from lakemq.plugins.admin.dashboard.details import Action, facts_of
from lakemq.plugins.admin.dashboard.guard import Form
from lakemq.plugins.admin.dashboard.site import Site, session_of
from lakemq.plugins.admin.dashboard.tables import Column, Table

_KEYS: Final = Table(
    "keys",
    (
        Column("id", "Key", sort=True, link=lambda row: f"/keys/{segment(row['id'])}"),
        Column("says", "For", sort=True),
        Column("roles", "Roles", "list"),
        Column("made_by", "Made by"),
        Column("made_ms", "Made (UTC)", "time", sort=True),
        Column("expires_ms", "Expires (UTC)", "time"),
        Column("last_used_ms", "Last used (UTC)", "time"),
    ),
    "API keys",
    "No API key was made. Programs send one as: Authorization: Bearer",
    searched="Key or purpose contains",
)
_VIEWS: Final = (("/access", "Users and rules"), ("/keys", "API keys"))
_OPERATIONS: Final = ("read", "write", "create", "alter", "delete", "describe")
_LIMITS: Final = ("bytes_in_per_s", "bytes_out_per_s", "records_per_s")


class AccessPages:
    """May X do Y, and by which rule?"""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Sequence[Route]:
        """Pages and forms."""
        site = self._site
        return [
            site.get_route("/access", self._access),
            site.get_route("/keys", self._keys),
            site.post_route("/keys", self._make_key),
            site.get_route("/keys/{key}", self._key),
            site.post_route("/key-revoke/{key}", self._revoke_key),
            site.post_route("/access/users", self._add_user),
            site.post_route("/access/users-change", self._change_user),
            site.post_route("/access/rules", self._add_rule),
            site.post_route("/access/rules-delete", self._delete_rule),
            site.post_route("/access/quotas", self._set_quota),
            site.post_route("/access/quotas-delete", self._delete_quota),
        ]

    async def _access(self, request: Request) -> Response:
        site, limit = self._site, {"limit": "500"}
        lists = await asyncio.gather(
            site.try_get(request, "users", limit),
            site.try_get(request, "rules", limit),
            site.try_get(request, "quotas", limit),
        )
        users, rules, quotas = ((each or {}).get("data") for each in lists)
        tested, error, asked = None, "", dict(request.query_params)
        if asked.get("resource"):
            query = {
                "operation": asked.get("operation", ""), "resource": asked["resource"],
                "user": asked.get("user", ""), "roles": asked.get("roles", ""),
            }  # fmt: skip
            try:
                tested = await site.get(request, "access/test", query)
            except ApiProblem as problem:
                error = problem.detail
        return site.page(
            request, "access.html", "Access", users=users, rules=rules, quotas=quotas,
            tested=tested, error=error, asked=asked, operations=_OPERATIONS, limits=_LIMITS,
            views=_VIEWS,
            may_alter="alter" in session_of(request).may,
        )  # fmt: skip

    async def _keys(self, request: Request) -> Response:
        may = await self._site.may(request, "create", "cluster", "cluster")
        return await self._site.table(
            request, _KEYS, "keys.html", "API keys", views=_VIEWS, may=may, made=None
        )

    async def _make_key(self, request: Request, form: Form) -> Response:
        """The key is shown in the answer to the form alone: it is told once."""
        body: dict[str, object] = {"says": form.get("says", ""), "roles": _words(form, "roles")}
        if days := form.get("days", ""):
            if not days.isdigit():
                raise ApiProblem(400, "INVALID_REQUEST", "days takes a whole number")
            body["expires_s"] = int(days) * 86_400
        made = await self._site.change(request, "POST", "keys", body)
        return await self._site.table(
            request, _KEYS, "keys.html", "API keys", views=_VIEWS, may=True, made=made
        )

    async def _key(self, request: Request) -> Response:
        site, wanted = self._site, request.path_params["key"]
        found = await site.get(request, "keys", {"q": wanted[:256]})
        row = next((each for each in found["data"] if each["id"] == wanted), None)
        if row is None:
            raise ApiProblem(404, "UNKNOWN_ENTRY", f"there is no API key {wanted}")
        may = await site.may(request, "create", "cluster", "cluster")
        revoke = Action(
            "Revoke", f"/key-revoke/{segment(wanted)}", "create the cluster", may,
            "It opens nothing any more, and what it opened ends.",
        )  # fmt: skip
        return site.page(
            request, "detail.html", f"API key {wanted}", text=None, text_title="",
            facts=facts_of(_KEYS.columns, row), actions=[revoke],
        )  # fmt: skip

    async def _revoke_key(self, request: Request, form: Form) -> Response:
        wanted = request.path_params["key"]
        await self._site.change(request, "DELETE", f"keys/{segment(wanted)}")
        return self._site.done(request, "/keys", f"API key {wanted} is revoked.")

    async def _add_user(self, request: Request, form: Form) -> Response:
        name = form.get("name", "")
        body = {"name": name, "password": form.get("password", ""), "roles": _words(form, "roles")}
        await self._site.change(request, "POST", "users", body)
        return self._site.done(request, "/access", f"User {name} is added.")

    async def _change_user(self, request: Request, form: Form) -> Response:
        name, action = form.get("name", ""), form.get("action", "")
        path = f"users/{segment(name)}"
        if action == "delete":
            await self._site.change(request, "DELETE", path)
        elif action in ("disable", "enable"):
            await self._site.change(request, "PATCH", path, {"disabled": action == "disable"})
        else:
            raise ApiProblem(
                400, "INVALID_REQUEST", f"{action[:50]!r} is nothing to do with a user"
            )
        return self._site.done(request, "/access", f"User {name}: {action}d.")

    async def _add_rule(self, request: Request, form: Form) -> Response:
        body = {
            "who": _words(form, "who"),
            "operations": _words(form, "operations"),
            "resource": form.get("resource", ""),
            "effect": form.get("effect", "allow"),
        }
        made = await self._site.change(request, "POST", "rules", body)
        return self._site.done(request, "/access", f"Rule {', '.join(made['ids'])} is made.")

    async def _delete_rule(self, request: Request, form: Form) -> Response:
        rule = form.get("rule", "")
        await self._site.change(request, "DELETE", f"rules/{segment(rule)}")
        return self._site.done(request, "/access", f"Rule {rule} is deleted.")

    async def _set_quota(self, request: Request, form: Form) -> Response:
        who, body = form.get("who", ""), {}
        for name in _LIMITS:
            if form.get(name):
                if not form[name].isdigit():
                    raise ApiProblem(400, "INVALID_REQUEST", f"{name} takes a whole number")
                body[name] = int(form[name])
        await self._site.change(request, "PUT", f"quotas/{segment(who)}", body)
        return self._site.done(request, "/access", f"The quota of {who} is set.")

    async def _delete_quota(self, request: Request, form: Form) -> Response:
        who = form.get("who", "")
        await self._site.change(request, "DELETE", f"quotas/{segment(who)}")
        return self._site.done(request, "/access", f"{who} has no quota any more.")


def _words(form: Form, name: str) -> list[str]:
    """By commas or spaces."""
    return form.get(name, "").replace(",", " ").split()
