"""The table of all routes: what a method and a path mean, and what else the path takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel, Field, create_model

from lakemq.broker_core.api.administration.routes import (
    METHODS,
    AdminListing,
    AdminRoute,
    AnyRoute,
    PageQuery,
    Query,
)
from lakemq.broker_core.api.errors import PluginError
from lakemq.plugins.admin.api.problems import Problem

SEGMENT_MAX: Final = 65_535 * 3
"""Longest part of a path: an MQTT client id, percent-encoded."""


@dataclass(frozen=True)
class Entry:
    """A route, ready to be matched."""

    route: AnyRoute
    parts: tuple[str, ...]
    """Of its path; `{name}` stands for any."""

    @cached_property
    def query(self) -> type[Query] | None:
        """Model of its parameters. That of a list is made when it is used first."""
        if isinstance(self.route, AdminRoute):
            return self.route.query
        return page_model(self.route)

    @property
    def method(self) -> str:
        """`GET` for a list."""
        return self.route.method if isinstance(self.route, AdminRoute) else "GET"

    def names(self) -> Iterator[str]:
        """What stands for a value in the path."""
        return (part[1:-1] for part in self.parts if part.startswith("{"))


class Match(NamedTuple):
    """What a request is about."""

    entry: Entry
    path: Mapping[str, str]


class RouteTable:
    """Looked up by the number of parts of a path, then part by part; a literal part comes first."""

    def __init__(self, routes: Sequence[AnyRoute]) -> None:
        """Raises PluginError: a method that is unknown, the same route twice, or a list that can't
        be served."""
        self.entries = [_compiled(route) for route in routes]
        self._by_size: dict[int, list[Entry]] = {}
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for entry in self.entries:
            key = entry.method, tuple("{}" if each[0] == "{" else each for each in entry.parts)
            if entry.method not in METHODS or key in seen:
                raise PluginError(
                    f"admin: route {entry.method} {entry.route.path} is of no known method, or "
                    "there twice"
                )
            seen.add(key)
            self._by_size.setdefault(len(entry.parts), []).append(entry)
        self._shown = {
            entry.route.path: entry.route
            for entry in self.entries
            if isinstance(entry.route, AdminRoute)
            and entry.route.tagged
            and entry.route.method == "GET"
        }
        for entry in self.entries:
            route = entry.route
            # Another node answers with one message, so a download is not forwarded.
            if (
                isinstance(route, AdminRoute)
                and route.download
                and (route.own or route.owner is not None or route.method == "GET")
            ):
                raise PluginError(
                    f"admin: route {route.method} {route.path} is a download: it must not be GET, "
                    "and each node must be able to carry it out"
                )
            if not isinstance(route, AdminRoute) or not route.tagged:
                continue
            # `If-Match` does not travel to other nodes.
            if route.path not in self._shown or route.own or route.owner is not None:
                raise PluginError(
                    f"admin: route {route.method} {route.path} is tagged: there must be a tagged "
                    "GET of its path, and each node must be able to carry it out"
                )
        for entries in self._by_size.values():
            entries.sort(key=lambda each: [part.startswith("{") for part in each.parts])

    def find(self, method: str, path: str) -> Match:
        """`path`: behind `/api/v1/`, percent-encoded. Raises Problem: 404; 405 with all methods
        that the path takes."""
        parts = path.split("/")
        if any(len(part) > SEGMENT_MAX for part in parts):
            raise Problem(400, "INVALID_REQUEST", "a part of the path is too long")
        allowed: list[str] = []
        for entry in self._by_size.get(len(parts), ()):
            found = _matched(entry, parts)
            if found is None:
                continue
            if entry.method == ("GET" if method == "HEAD" else method):
                return Match(entry, found)
            allowed.append(entry.method)
        if not allowed:
            raise Problem(404, "UNKNOWN_PATH", "there is no such path; see /api/v1/openapi.json")
        if "GET" in allowed:
            allowed.append("HEAD")
        names = ", ".join(sorted(allowed))
        raise Problem(
            405, "METHOD_NOT_ALLOWED", f"{method} is not for this path; it takes {names}",
            headers={"Allow": names},
        )  # fmt: skip

    def shown(self, changing: AdminRoute) -> AdminRoute:
        """The `GET` of the path of a tagged route."""
        return self._shown[changing.path]


def _matched(entry: Entry, parts: Sequence[str]) -> dict[str, str] | None:
    values = {}
    for wanted, part in zip(entry.parts, parts, strict=True):
        if wanted.startswith("{"):
            # One by one: a client id may hold an encoded slash.
            try:
                values[wanted[1:-1]] = unquote_to_bytes(part).decode()
            except UnicodeDecodeError:
                return None
            if not part:
                return None
        elif wanted != part:
            return None
    return values


def _compiled(route: AnyRoute) -> Entry:
    if isinstance(route, AdminListing) and not _can_be_served(route):
        raise PluginError(
            f"admin: route GET {route.path} is a list: it must have a field to sort by, a model of "
            "its rows, and parameters that are a PageQuery"
        )
    return Entry(route, tuple(route.path.split("/")))


def _can_be_served(listing: Any) -> bool:
    # Any: plugins may not have been checked by mypy.
    models = issubclass(listing.gives, BaseModel) and issubclass(listing.query, PageQuery)
    return models and bool(listing.sorts)


def _one_of(names: Sequence[str]) -> Any:
    return Literal[tuple(names)]


def page_model(listing: AdminListing[Any]) -> type[PageQuery]:
    """The model of a list's parameters, which names what it can be sorted by and its fields."""
    sorts = [*listing.sorts, *(f"-{name}" for name in listing.sorts)]
    first = f"-{sorts[0]}" if listing.descending else sorts[0]
    fields = "|".join(listing.gives.model_fields)
    described = PageQuery.model_fields
    made: type[PageQuery] = create_model(
        f"{listing.gives.__name__}Query",
        __base__=listing.query,
        sort=(_one_of(sorts), Field(first, description=described["sort"].description)),
        fields=(
            str,
            Field(
                "", pattern=rf"^(({fields})(,({fields}))*)?$",
                description=described["fields"].description,
            ),
        ),
    )  # fmt: skip
    return made
