"""Schemas: versions, who uses them, and new ones with what keeps them from being registered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import ApiProblem, segment
from lakemq.plugins.admin.dashboard.details import Action, confirmed
from lakemq.plugins.admin.dashboard.guard import Form
from lakemq.plugins.admin.dashboard.site import Site
from lakemq.plugins.admin.dashboard.tables import Column, Table

_SCHEMAS: Final = Table(
    "schemas",
    (
        Column("name", "Subject", sort=True,
               link=lambda row: f"/schemas/{quote(row['name'], safe='')}"),
        Column("compatibility", "Compatibility"),
        Column("versions", "Versions", "list",
               value=lambda row: [each["version"] for each in row["versions"]]),
        Column("used_by", "Used by topics", "list"),
    ),
    "schemas",
    "No schema is registered. Register one above, or:",
    "lakemq schema register SUBJECT FILE",
)  # fmt: skip
_KINDS: Final = ("json-schema", "avro", "protobuf")
_RULES: Final = (
    "none", "backward", "backward-transitive", "forward", "forward-transitive", "full",
    "full-transitive",
)  # fmt: skip


class SchemaPages:
    """What values must fit."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Sequence[Route]:
        """Pages and forms."""
        site = self._site
        return [
            site.get_route("/schemas", self._schemas),
            site.get_route("/schema-new", self._new),
            site.post_route("/schema-new", self._register),
            site.get_route("/schemas/{subject:path}", self._schema),
            site.post_route("/schema-compatibility/{subject:path}", self._set_rule),
            site.post_route("/schema-delete/{subject:path}", self._delete),
        ]

    async def _schemas(self, request: Request) -> Response:
        return await self._site.table(request, _SCHEMAS, "schemas.html", "Schemas")

    async def _schema(self, request: Request) -> Response:
        """A version of a subject; the newest without one."""
        site, subject = self._site, request.path_params["subject"]
        wanted = request.query_params.get("version", "")
        query = {"version": wanted} if wanted else {}
        schema, found, alter, delete = await asyncio.gather(
            site.get(request, f"schemas/{segment(subject)}", query),
            site.get(request, "schemas", {"q": subject[:256], "limit": "500"}),
            site.may(request, "alter", "schema", subject),
            site.may(request, "delete", "schema", subject),
        )
        row = next((each for each in found["data"] if each["name"] == subject), None)
        actions = [
            Action(
                "Delete subject", f"/schema-delete/{segment(subject)}", f"delete schema:{subject}",
                delete, "Deletes all its versions; topics that use it take no more records.",
                subject,
            )
        ]  # fmt: skip
        return site.page(
            request, "schema.html", f"Schema {subject}", schema=schema, subject=row, rules=_RULES,
            may_alter=alter, actions=actions,
        )  # fmt: skip

    async def _new(self, request: Request) -> Response:
        """Begins with the version that there is, to be changed."""
        subject = request.query_params.get("subject", "")
        found = None
        if subject:
            found = await self._site.try_get(request, f"schemas/{segment(subject)}")
        form = {"subject": subject, **({} if found is None else dict(found))}
        return self._form(request, form, None)

    def _form(
        self, request: Request, form: Mapping[str, Any], problems: Sequence[str] | None
    ) -> Response:
        return self._site.page(
            request, "schema_new.html", "Register a schema", form=form, problems=problems,
            kinds=_KINDS,
        )  # fmt: skip

    async def _register(self, request: Request, form: Form) -> Response:
        """Checks it first. What is wrong is shown above the text that was sent."""
        subject, site = form.get("subject", ""), self._site
        body = {"schema_type": form.get("schema_type", ""), "text": form.get("text", "")}
        path = f"schemas/{segment(subject)}"
        try:
            checked = await site.change(request, "POST", f"{path}/check", body)
            if form.get("action") == "check" or checked["problems"]:
                return self._form(request, form, checked["problems"])
            made = await site.change(request, "POST", path, body)
        except ApiProblem as problem:
            if problem.status == 401:
                raise
            return self._form(request, form, [problem.detail])
        text = f"{subject} has version {made['version']}, with id {made['schema_id']}."
        return site.done(request, f"/schemas/{segment(subject)}", text)

    async def _set_rule(self, request: Request, form: Form) -> Response:
        subject = request.path_params["subject"]
        body = {"compatibility": form.get("compatibility", "")}
        path = f"schemas/{segment(subject)}/compatibility"
        done = await self._site.change(request, "PUT", path, body)
        text = f"New versions of {subject} must keep: {done['compatibility']}."
        return self._site.done(request, f"/schemas/{segment(subject)}", text)

    async def _delete(self, request: Request, form: Form) -> Response:
        subject = request.path_params["subject"]
        if not confirmed(form, subject):
            raise ApiProblem(400, "INVALID_REQUEST", f"type the name, {subject}, to delete it")
        await self._site.change(request, "DELETE", f"schemas/{segment(subject)}")
        return self._site.done(request, "/schemas", f"Schema {subject} is deleted.")
