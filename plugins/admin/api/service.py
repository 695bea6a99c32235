"""Carries requests out: rights, models, pages, other nodes, the audit log. Knows no HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from lakemq.broker_core.api.administration.audit import Change
from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.pages import Pause
from lakemq.broker_core.api.administration.routes import (
    ALL_NODES,
    EACH,
    OCTETS,
    AdminListing,
    AdminRequest,
    AdminRoute,
    AnyRoute,
    Body,
    ChangeQuery,
    Download,
    EveryQuery,
    Need,
    NoQuery,
    Query,
)
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import AccessContext, Operation, Principal, Resource
from lakemq.plugins.admin.api.conditions import check_match, tag_of
from lakemq.plugins.admin.api.everywhere import carried_out_by, nodes_of
from lakemq.plugins.admin.api.lists import Lists
from lakemq.plugins.admin.api.peers import (
    FORWARDED_WAIT_MAX_MS,
    PeerCall,
    PeerCalls,
    PeerReply,
)
from lakemq.plugins.admin.api.problems import Problem, error_of, invalid, problem_of
from lakemq.plugins.admin.api.repeats import Repeats
from lakemq.plugins.admin.api.table import Match, RouteTable

_log = logging.getLogger(__name__)
_SECRETS: Final = frozenset({"password"})
JSON: Final = "application/json"
_JSON_TYPES: Final = ("", JSON)
_PARAMETERS_MAX: Final = 100
"""Of a query; no route takes nearly as many."""


@dataclass(frozen=True)
class Call:
    """A request, from whom it is known."""

    method: str
    path: str
    """Behind `/api/v1/`, percent-encoded."""
    query: Sequence[tuple[str, str]]
    body: bytes
    content_type: str
    principal: Principal
    context: AccessContext
    idempotency_key: str = ""
    if_match: str = ""
    """Looked at by routes that are tagged."""


class Reply(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = {}
    content_type: str = JSON
    download: Download | None = None
    """In place of a body; to be closed."""


class AdminService:
    """The admin API of a node."""

    def __init__(self, node: AdministeredNode, routes: Sequence[AnyRoute], pause: Pause) -> None:
        """`pause`: lets others have their turn. Raises PluginError."""
        self.table = RouteTable(routes)
        self._node = node
        self._peers = PeerCalls(node)
        self._lists = Lists(node, self._peers, pause)
        self._repeats = Repeats(node.now_ms)
        self._turns = WeakValueDictionary[tuple[str, ...], asyncio.Lock]()
        """Of tagged resources that are being changed."""
        node.answer_peers(self.answer_peer)

    async def serve(self, call: Call) -> Reply:
        """Carry a request out. Raises Problem."""
        match = self.table.find(call.method, call.path)
        route = match.entry.route
        try:
            # Before the body is looked at.
            self.check_right(route, match.path, call.principal, call.context)
        except LakeMQError as error:
            problem = problem_of(error)
            await self._audit(call, match, {}, problem, {})
            raise problem from None
        if isinstance(route, AdminListing):
            request = self._request(call, match)
            return Reply(200, await self._lists.page(route, request, call.path, call.query))
        if call.idempotency_key and route.method != "GET" and not route.download:
            return await self._repeats.once(
                # A user and a certificate may have the same name.
                (
                    call.principal.kind,
                    call.principal.name,
                    call.method,
                    call.path,
                    call.idempotency_key,
                ),
                (call.query, call.body, call.if_match),
                lambda: self._carried_out(call, match, route),
            )
        return await self._carried_out(call, match, route)

    async def _carried_out(self, call: Call, match: Match, route: AdminRoute) -> Reply:
        notes: dict[str, object] = {}
        request: AdminRequest | None = None
        try:
            request = self._request(call, match)
            owner = _owner(route, request)
            if owner == ALL_NODES and isinstance(request.asked, EveryQuery):
                answer = await self._everywhere(call, route, request)
                notes["after"] = json.loads(answer.body)
            elif owner and owner != self._node.node_id:
                reply = await self._elsewhere(owner, call, route)
                notes.update(reply.notes)
                answer = Reply(reply.status, reply.body)
            else:
                if route.tagged:
                    answer = await self._tagged(call, route, request)
                else:
                    answer = await self._here(route, request)
                notes.update(request.notes)
        except Problem as problem:
            await self._audit(call, match, _asked(request), problem, notes)
            raise
        await self._audit(call, match, _asked(request), None, notes)
        return answer

    async def _here(self, route: AdminRoute, request: AdminRequest) -> Reply:
        """Raises Problem."""
        try:
            found = await route.answer(request)
        except LakeMQError as error:
            raise problem_of(error) from None
        if isinstance(found, Download):
            named = {"Content-Disposition": f'attachment; filename="{found.name}"'}
            return Reply(200, b"", named, OCTETS, found)
        status = 200 if _is_dry(request.asked) else route.status
        return Reply(status, b"" if status == 204 else to_json(found))

    async def _tagged(self, call: Call, route: AdminRoute, request: AdminRequest) -> Reply:
        """The same of a resource with an entity tag. Raises Problem."""
        if route.method == "GET":
            reply = await self._here(route, request)
            tag = tag_of(reply.body)
            check_match(call.if_match, tag)
            return reply._replace(headers={"ETag": tag})
        # One after the other: nothing changes it between the comparison and the change.
        async with self._turns.setdefault((route.path, *request.path.values()), asyncio.Lock()):
            if call.if_match:
                check_match(call.if_match, await self._tag_now(route, request))
            reply = await self._here(route, request)
        if route.method != "PATCH" or _is_dry(request.asked):
            return reply
        return reply._replace(headers={"ETag": tag_of(reply.body)})

    async def _tag_now(self, route: AdminRoute, request: AdminRequest) -> str | None:
        """None: what a PUT would make does not exist. Raises Problem."""
        shown = replace(request, asked=NoQuery(), given=None, notes={})
        try:
            return tag_of(to_json(await self.table.shown(route).answer(shown)))
        except LakeMQError as error:
            problem = problem_of(error)
        if problem.status == 404 and route.method == "PUT":
            return None
        # What would be answered without a condition comes before it (RFC 9110, 13.2.1).
        raise problem

    async def _everywhere(self, call: Call, route: AdminRoute, request: AdminRequest) -> Reply:
        """Raises Problem."""

        async def carry_out(node: str) -> None:
            if node == self._node.node_id:
                await self._here(route, request)
            else:
                await self._elsewhere(node, call, route)

        done = await carried_out_by(nodes_of(self._node), carry_out)
        return Reply(200, to_json({"nodes": done}))

    async def _elsewhere(self, owner: str, call: Call, route: AdminRoute) -> PeerReply:
        """Raises Problem."""
        asked = PeerCall(
            call.method, call.path, _soon(call.query), call.body, call.content_type,
            call.principal, call.context,
        )  # fmt: skip
        is_read = route.need is not None and route.need.operation is Operation.READ
        try:
            reply = await self._peers.ask(owner, asked, apart=is_read)
        except LakeMQError as error:
            raise problem_of(error) from None
        if reply.status >= 400:
            raise reply.problem()
        return reply

    async def answer_peer(self, data: bytes) -> bytes:
        """Carry out what another node forwards: here, and nowhere else."""
        try:
            asked = PeerCall.decode(data)
            call = Call(
                asked.method, asked.path, asked.query, asked.body, asked.content_type,
                asked.principal, asked.context,
            )  # fmt: skip
            match = self.table.find(call.method, call.path)
            route = match.entry.route
            # Once more here: the nodes may not have heard of a change of rules at the same time.
            self.check_right(route, match.path, call.principal, call.context)
            request = self._request(call, match)
            if isinstance(route, AdminListing):
                body = await self._lists.part(route, request)
                return PeerReply(200, body, {}).encode()
            reply = await self._here(route, request)
            return PeerReply(reply.status, reply.body, request.notes).encode()
        except LakeMQError as error:
            problem = problem_of(error)
        except Problem as raised:
            problem = raised
        return PeerReply(problem.status, problem.body(), {}).encode()

    async def _also(self, call: Call, path: str, query: Mapping[str, str]) -> Any:
        """What a handler asks besides, for the same caller. Raises LakeMQError."""
        asked = Call("GET", path, list(query.items()), b"", "", call.principal, call.context)
        try:
            return json.loads((await self.serve(asked)).body)
        except Problem as problem:
            raise error_of(problem) from None

    # -- parts of a request

    def check_right(
        self,
        route: AnyRoute,
        path: Mapping[str, str],
        principal: Principal,
        context: AccessContext,
    ) -> None:
        """Raises NotAuthorized, NotAuthenticated."""
        changes = isinstance(route, AdminRoute) and route.method != "GET"
        need = route.need or Need(Operation.ALTER if changes else Operation.DESCRIBE)
        if need.kind == EACH.kind:
            return
        name = path[need.path] if need.path else "cluster"
        self._node.catalog.authorize(principal, need.operation, Resource(need.kind, name), context)

    def _request(self, call: Call, match: Match) -> AdminRequest:
        """Raises Problem."""
        route, model = match.entry.route, match.entry.query
        query = _unique(call.query)
        asked: Query = NoQuery()
        if model is not None:
            try:
                asked = model.model_validate(query)
            except ValidationError as error:
                raise invalid("query", error) from None
        request = AdminRequest(
            match.path, query, {}, call.principal, call.context, asked, None, call.body,
            call.content_type, partial(self._also, call),
        )  # fmt: skip
        if isinstance(route, AdminListing) or route.method == "GET":
            return request
        if call.content_type not in route.takes:
            raise Problem(
                415, "UNSUPPORTED_MEDIA_TYPE",
                f"Content-Type is {call.content_type or 'missing'}; it must be "
                f"{' or '.join(filter(None, route.takes))}",
            )  # fmt: skip
        if call.content_type not in _JSON_TYPES and not call.content_type.endswith("+json"):
            return request
        if route.body is None:
            return replace(request, body=_object(call.body))
        return replace(request, given=_given(route.body, call.body))

    async def _audit(
        self,
        call: Call,
        match: Match,
        asked: Mapping[str, object],
        problem: Problem | None,
        notes: Mapping[str, object],
    ) -> None:
        route = match.entry.route
        if isinstance(route, AdminListing) or route.method == "GET" or not route.audited:
            return
        if problem is None and asked.get("dry_run") is True:
            return
        await self._node.audit.note(
            Change(
                call.principal,
                call.context,
                action=f"{call.method} {route.path}",
                resource="/".join(match.path.values()),
                outcome="done" if problem is None else problem.code,
                detail="" if problem is None else str(problem),
                request=asked,
                before=notes.get("before"),
                after=notes.get("after"),
            )
        )


def _owner(route: AdminRoute, request: AdminRequest) -> str:
    """Node that shall carry the request out; empty: this one. Raises Problem."""
    if route.own:
        return str(getattr(request.asked, "node", ""))
    try:
        return route.owner(request) if route.owner is not None else ""
    except LakeMQError as error:
        raise problem_of(error) from None


def _is_dry(asked: Query) -> bool:
    return isinstance(asked, ChangeQuery) and asked.dry_run


def _asked(request: AdminRequest | None) -> dict[str, object]:
    """What was asked for, for the audit log: parameters that are set, and the body's fields."""
    if request is None:
        return {}
    found: dict[str, object] = request.asked.model_dump(exclude_defaults=True)
    if request.given is not None:
        found |= request.given.model_dump(mode="json", exclude_unset=True)
    found |= request.body
    return {name: "***" if name in _SECRETS else value for name, value in found.items()}


def _soon(query: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same, but that a request which waits for records is answered before a call of another
    node must be. What is no number is that node's to refuse."""
    return [
        (name, str(FORWARDED_WAIT_MAX_MS))
        if name == "wait_ms" and _is_above(value, FORWARDED_WAIT_MAX_MS)
        else (name, value)
        for name, value in query
    ]


def _is_above(text: str, most: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > most


def _unique(query: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Raises Problem: a parameter is there twice."""
    if len(query) > _PARAMETERS_MAX:
        raise Problem(400, "INVALID_REQUEST", f"the query has over {_PARAMETERS_MAX} parameters")
    found: dict[str, str] = {}
    for name, value in query:
        if name in found:
            raise Problem(400, "INVALID_REQUEST", f"query.{name[:100]}: it is there twice")
        found[name] = value
    return found


def _given(model: type[Body], body: bytes) -> Body:
    """Raises Problem."""
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise invalid("body", error) from None


def _object(body: bytes) -> dict[str, object]:
    """A JSON object; empty where there is no body. Raises Problem."""
    try:
        # As strict as models are: json.loads takes NaN, and half of a surrogate pair.
        found: Any = from_json(body, allow_inf_nan=False) if body else {}
    except ValueError as error:  # neither UTF-8 nor JSON, or nested too deep
        raise Problem(400, "INVALID_REQUEST", f"the body is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise Problem(400, "INVALID_REQUEST", "the body is not a JSON object")
    return found
