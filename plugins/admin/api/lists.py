"""Lists: pages of this node, and of all nodes, merged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, Field
from pydantic_core import to_json

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.pages import (
    Pause,
    Place,
    cursor_of,
    cut_page,
    order_of,
)
from lakemq.broker_core.api.administration.routes import (
    AdminListing,
    AdminRequest,
    Answer,
    PageQuery,
    expect,
)
from lakemq.broker_core.api.errors import LakeMQError, Unavailable
from lakemq.plugins.admin.api.everywhere import nodes_of
from lakemq.plugins.admin.api.peers import PeerCall, PeerCalls
from lakemq.plugins.admin.api.problems import problem_of

_ROWS: Final = 50
"""Rows that are made JSON before others have their turn."""


class MissingNode(Answer):
    """A node that did not answer: what it has is not in the page."""

    node: str
    reason: str


class PageMeta(Answer):
    """About a page."""

    next: str | None
    """Cursor of the next page; null: this is the last one."""
    total: int
    """Rows of all pages, as of now."""
    as_of: datetime
    """When the rows were true (UTC)."""
    missing: list[MissingNode] = Field(default_factory=list)
    """Nodes that did not answer; their rows are left out, and not in `total`."""


class _Part(NamedTuple):
    """The rows of one node."""

    rows: Sequence[bytes]
    """As JSON."""
    places: Sequence[Place]
    more: bool
    total: int


class Lists:
    """Pages of lists."""

    def __init__(self, node: AdministeredNode, peers: PeerCalls, pause: Pause) -> None:
        self._node = node
        self._peers = peers
        self._pause = pause

    async def page(
        self,
        listing: AdminListing[Any],
        request: AdminRequest,
        path: str,
        query: Sequence[tuple[str, str]],
    ) -> bytes:
        """A page as JSON. `path`, `query`: as they came, for other nodes. Raises Problem."""
        asked = expect(request.asked, PageQuery)
        missing: list[MissingNode] = []
        try:
            order = order_of(listing, asked)
            wanted = self._wanted(listing, asked)
            if wanted == [self._node.node_id]:
                parts = [await self._own(listing, request)]
            else:
                call = PeerCall("GET", path, query, b"", "", request.principal, request.context)
                parts = await self._all(listing, request, wanted, call, missing)
        except LakeMQError as error:
            raise problem_of(error) from None
        rows = [row for part in parts for row in zip(part.places, part.rows, strict=True)]
        rows.sort(key=lambda row: row[0], reverse=order.descending)
        shown = rows[: asked.limit]
        more = len(rows) > len(shown) or any(part.more for part in parts)
        meta = PageMeta(
            next=cursor_of(order, shown[-1][0]) if more and shown else None,
            total=sum(part.total for part in parts),
            as_of=datetime.fromtimestamp(self._node.now_ms() / 1000, UTC),
            missing=missing,
        )
        data = b",".join(row for _, row in shown)
        return b'{"data":[%b],"meta":%b}' % (data, meta.model_dump_json().encode())

    def _wanted(self, listing: AdminListing[Any], asked: PageQuery) -> list[str]:
        """Nodes that have rows."""
        here = self._node.node_id
        if not listing.own:
            return [here]
        if named := str(getattr(asked, "node", "")):
            return [named]
        return nodes_of(self._node)

    async def _all(
        self,
        listing: AdminListing[Any],
        request: AdminRequest,
        nodes: Sequence[str],
        call: PeerCall,
        missing: list[MissingNode],
    ) -> list[_Part]:
        """The parts of those who answer. Where one node alone is asked, raises its error."""

        async def ask(node: str) -> _Part:
            if node == self._node.node_id:
                return await self._own(listing, request)
            reply = await self._peers.ask(node, call)
            if reply.status < 400:
                return _decoded(reply.body)
            problem = reply.problem()
            if problem.code == "UNKNOWN_PATH":  # a plugin that is off there
                return _Part((), (), False, 0)
            raise problem

        found = await asyncio.gather(*map(ask, nodes), return_exceptions=True)
        parts = []
        for node, part in zip(nodes, found, strict=True):
            if isinstance(part, _Part):
                parts.append(part)
            elif len(nodes) == 1 or node == self._node.node_id or not isinstance(part, LakeMQError):
                raise part
            else:
                missing.append(MissingNode(node=node, reason=str(part)))
        return parts

    async def part(self, listing: AdminListing[Any], request: AdminRequest) -> bytes:
        """The rows of this node, for another one. Raises LakeMQError."""
        part = await self._own(listing, request)
        head = json.dumps({"places": part.places, "more": part.more, "total": part.total})
        return b"\n".join([head.encode(), *part.rows])

    async def _own(self, listing: AdminListing[Any], request: AdminRequest) -> _Part:
        cut = await cut_page(listing, request, self._node.node_id, self._pause)
        asked = expect(request.asked, PageQuery)
        fields = set(asked.fields.split(",")) if asked.fields else None
        rows: list[bytes] = []
        places: list[Place] = []
        for start in range(0, len(cut.items), _ROWS):
            made = await listing.rows(cut.items[start : start + _ROWS], request)
            shown = zip(made, cut.places[start : start + _ROWS], strict=True)
            for row, place in shown:
                if row is not None:
                    rows.append(_json(row, fields))
                    places.append(place)
            await self._pause()
        return _Part(rows, places, cut.more, cut.total)


def _json(row: BaseModel, fields: set[str] | None) -> bytes:
    return to_json(row) if fields is None else row.model_dump_json(include=fields).encode()


def _decoded(body: bytes) -> _Part:
    """Raises Unavailable for what no node of this version says."""
    head, *rows = body.split(b"\n")
    try:
        found: Mapping[str, Any] = json.loads(head)
        places = [Place(*each) for each in found["places"]]
        if len(places) != len(rows):
            raise ValueError(f"{len(places)} places of {len(rows)} rows")
        return _Part(rows, places, bool(found["more"]), int(found["total"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise Unavailable(f"its answer can't be read: {error!r}"[:200]) from None
