"""Users, rules, quotas, and who may do what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import ApiProblem, segment
from lakemq.plugins.admin.dashboard.guard import Form
from lakemq.plugins.admin.dashboard.site import Site, session_of

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
            may_alter="alter" in session_of(request).may,
        )  # fmt: skip

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
