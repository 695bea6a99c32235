"""OpenAPI 3.1, made from the table of routes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from lakemq.broker_core.api.administration.routes import (
    OCTETS,
    AdminListing,
    AdminRoute,
    NoQuery,
)
from lakemq.plugins.admin.api.descriptions import DescribedSchema
from lakemq.plugins.admin.api.lists import PageMeta
from lakemq.plugins.admin.api.problems import CONTENT_TYPE, ProblemAnswer
from lakemq.plugins.admin.api.table import Entry, RouteTable

_REF: Final = "#/components/schemas/{model}"
_SENTENCE: Final = re.compile(r"(.*?\.)(\s|$)", re.DOTALL)
_INTRODUCTION: Final = (
    "What operators do with LakeMQ. Lists are paged by cursor; errors are problem details "
    "(RFC 9457) with a stable `code`; times are UTC, sizes bytes. `docs/admin-api.md` has a guide."
)


class Document:
    """The document of a node, made when it is asked for first: most nodes never are."""

    def __init__(
        self, table: RouteTable, version: str, give_way: Callable[[], Awaitable[None]]
    ) -> None:
        self._table = table
        self._version = version
        self._give_way = give_way
        self._making = asyncio.Lock()
        self._made: bytes | None = None

    async def json(self) -> bytes:
        """The document, in UTF-8."""
        async with self._making:
            if self._made is None:
                # Here: requests use the models too, and a model is not built by two threads.
                for model in {*dict(_models(self._table)), *_queries(self._table)}:
                    model.model_rebuild()
                    await self._give_way()
                self._made = await asyncio.to_thread(self._text)
            return self._made

    def _text(self) -> bytes:
        return json.dumps(document_of(self._table, self._version)).encode()


def document_of(table: RouteTable, version: str) -> dict[str, Any]:
    """The document for all routes of a table."""
    models = sorted(set(_models(table)), key=lambda each: (each[0].__name__, each[1]))
    refs, definitions = models_json_schema(
        models, ref_template=_REF, schema_generator=DescribedSchema
    )
    paths: dict[str, dict[str, Any]] = {}
    for entry in sorted(_entries(table), key=lambda each: each.parts):
        operation = _operation(entry, refs)
        paths.setdefault(f"/api/v1/{entry.route.path}", {})[entry.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "LakeMQ admin API",
            "version": version,
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"basic": []}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "responses": {
                "Problem": {
                    "description": "Why the request was not carried out.",
                    "content": {CONTENT_TYPE: {"schema": _schema(ProblemAnswer, refs)}},
                }
            },
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _entries(table: RouteTable) -> Iterator[Entry]:
    """What is described."""
    for entry in table.entries:
        if isinstance(entry.route, AdminListing) or entry.route.described:
            yield entry


def _models(table: RouteTable) -> Iterator[tuple[type[BaseModel], JsonSchemaMode]]:
    yield ProblemAnswer, "serialization"
    yield PageMeta, "serialization"
    for entry in _entries(table):
        if entry.route.gives is not None:
            yield entry.route.gives, "serialization"
        if isinstance(entry.route, AdminRoute) and entry.route.body is not None:
            yield entry.route.body, "validation"


def _queries(table: RouteTable) -> Iterator[type[BaseModel]]:
    return (entry.query for entry in _entries(table) if entry.query is not None)


def _schema(model: type[BaseModel], refs: Any, mode: JsonSchemaMode = "serialization") -> Any:
    return refs[model, mode]


def _operation(entry: Entry, refs: Any) -> dict[str, Any]:
    route = entry.route
    summary = route.summary or _first_sentence(getattr(route, "answer", None))
    words = [part.strip("{}").replace("-", "_") for part in entry.parts]
    operation: dict[str, Any] = {
        "operationId": "_".join([entry.method.lower(), *words]),
        "tags": [entry.parts[0]],
        "summary": summary,
        "parameters": [*_path_parameters(entry), *_query_parameters(entry)],
        "responses": {
            **_answers(entry, refs),
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }
    if isinstance(route, AdminRoute) and route.method != "GET":
        operation["requestBody"] = _request_body(route, refs)
    if isinstance(route, AdminRoute) and route.method != "GET" and not route.download:
        operation["parameters"].append(
            {
                "name": "Idempotency-Key", "in": "header",
                "description": "A repeat with the same key is answered as the first, and does "
                "nothing; this node remembers it for ten minutes.",
                "schema": {"type": "string", "maxLength": 255},
            }
        )  # fmt: skip
    if isinstance(route, AdminRoute) and route.tagged:
        operation["parameters"].append(
            {
                "name": "If-Match",
                "in": "header",
                "description": "`*`, or ETags by commas: 412 where the resource has none of them "
                "now.",
                "schema": {"type": "string"},
            }
        )
        if route.method in ("GET", "PATCH"):
            operation["responses"]["200"]["headers"] = {
                "ETag": {
                    "description": "Strong: another one where anything of the answer is another.",
                    "schema": {"type": "string"},
                }
            }
    if not operation["parameters"]:
        del operation["parameters"]
    return operation


def _request_body(route: AdminRoute, refs: Any) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for kind in route.takes:
        if kind != "application/json":
            content[kind] = {}
        elif route.body is None:
            content[kind] = {"schema": {"type": "object", "additionalProperties": True}}
        else:
            content[kind] = {"schema": _schema(route.body, refs, "validation")}
    # Also where there is nothing to say: it is the content type that a web page can't send.
    return {"required": True, "content": content}


def _answers(entry: Entry, refs: Any) -> dict[str, Any]:
    route = entry.route
    if isinstance(route, AdminListing):
        schema: Any = {
            "type": "object",
            "required": ["data", "meta"],
            "properties": {
                "data": {"type": "array", "items": _schema(route.gives, refs)},
                "meta": _schema(PageMeta, refs),
            },
        }
        return {"200": _content("A page of the list.", schema)}
    if route.status == 204:
        return {"204": {"description": "Done."}}
    if route.download:
        binary = {"schema": {"type": "string", "format": "binary"}}
        return {"200": {"description": "The file.", "content": {OCTETS: binary}}}
    schema = {} if route.gives is None else _schema(route.gives, refs)
    found = {str(route.status): _content("Done." if route.method != "GET" else "Found.", schema)}
    if route.status != 200 and route.query is not None and "dry_run" in route.query.model_fields:
        found["200"] = _content("What would be done.", schema)
    return found


def _content(description: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _path_parameters(entry: Entry) -> Iterator[dict[str, Any]]:
    for name in entry.names():
        yield {
            "name": name, "in": "path", "required": True,
            "schema": {"type": "string", "minLength": 1},
        }  # fmt: skip


def _query_parameters(entry: Entry) -> Iterator[dict[str, Any]]:
    if entry.query is None or entry.query is NoQuery:
        return
    schema = entry.query.model_json_schema(ref_template=_REF, schema_generator=DescribedSchema)
    required = schema.get("required", ())
    for name, info in schema["properties"].items():
        shown = {key: value for key, value in info.items() if key not in ("title", "description")}
        yield {
            "name": name, "in": "query", "required": name in required,
            "description": " ".join(info.get("description", "").split()), "schema": shown,
        }  # fmt: skip


def _first_sentence(answer: object) -> str:
    text = " ".join((getattr(answer, "__doc__", None) or "").split())
    found = _SENTENCE.match(text)
    return found[1] if found else text
