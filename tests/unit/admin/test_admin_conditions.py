"""Goal: a change that names what it was decided on is refused where that has changed meanwhile."""

from __future__ import annotations

import asyncio
import json

import pytest

from lakemq.broker_core.api.administration.routes import (
    AdminRequest,
    AdminRoute,
    Answer,
    Body,
    ChangeQuery,
    NoQuery,
    OwnQuery,
    expect,
)
from lakemq.broker_core.api.errors import PluginError, UnknownEntry
from lakemq.broker_core.api.types import AccessContext, Principal
from lakemq.plugins.admin.api.conditions import check_match
from lakemq.plugins.admin.api.problems import Problem
from lakemq.plugins.admin.api.service import AdminService, Call, Reply
from lakemq.plugins.admin.api.table import RouteTable
from tests.support.node.administered import ListedChanges, StubNode

ANN = Principal("ann")
FROM = AccessContext("admin", peer_host="10.0.0.7", listener="admin")


class Thing(Answer):
    name: str
    size: int


class Size(Body):
    size: int


class Things:
    """Two requests at once would both see the old size, if they were let."""

    def __init__(self) -> None:
        self.sizes = {"a": 1}
        self.node = StubNode(self)
        self.node.audit = self.audit = ListedChanges()
        one = "things/{name}"
        self.service = AdminService(self.node, [
            AdminRoute("GET", one, self.get, Thing, NoQuery, tagged=True),
            AdminRoute("PUT", one, self.put, Thing, ChangeQuery, Size, tagged=True),
            AdminRoute("PATCH", one, self.put, Thing, ChangeQuery, Size, tagged=True),
            AdminRoute("DELETE", one, self.delete, Thing, ChangeQuery, tagged=True),
        ], self.node.give_way)  # fmt: skip

    def authorize(self, *asked: object) -> None:
        """All are allowed."""

    async def get(self, request: AdminRequest) -> Thing:
        name = request.path["name"]
        if name not in self.sizes:
            raise UnknownEntry(f"there is no {name}")
        return Thing(name=name, size=self.sizes[name])

    async def put(self, request: AdminRequest) -> Thing:
        await asyncio.sleep(0)
        name, size = request.path["name"], expect(request.given, Size).size
        if not expect(request.asked, ChangeQuery).dry_run:
            self.sizes[name] = size
        return Thing(name=name, size=size)

    async def delete(self, request: AdminRequest) -> Thing:
        found = await self.get(request)
        del self.sizes[found.name]
        return found

    async def ask(self, method: str, path: str, match: str = "", size: int = 0) -> Reply:
        body = b"" if method in ("GET", "DELETE") else json.dumps({"size": size}).encode()
        call = Call(method, path, [], body, "application/json", ANN, FROM, "", match)
        return await self.service.serve(call)

    async def refused(self, method: str, path: str, match: str) -> tuple[int, str]:
        with pytest.raises(Problem) as caught:
            await self.ask(method, path, match, size=9)
        return caught.value.status, caught.value.code


FAILED = (412, "PRECONDITION_FAILED")


async def test_a_change_of_what_has_changed_is_refused() -> None:
    things = Things()
    first = (await things.ask("GET", "things/a")).headers["ETag"]
    assert (await things.ask("GET", "things/a", first)).headers["ETag"] == first
    changed = await things.ask("PATCH", "things/a", first, size=2)
    second = changed.headers["ETag"]
    assert second != first
    assert (await things.ask("GET", "things/a")).headers["ETag"] == second
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        assert await things.refused(method, "things/a", first) == FAILED
    assert things.sizes == {"a": 2}
    assert [each.outcome for each in things.audit.changes] == ["done", *[FAILED[1]] * 3]
    # The stored one is not what came: no tag (RFC 9110, 9.3.4).
    assert "ETag" not in (await things.ask("PUT", "things/a", f'"x", {second}', size=3)).headers
    await things.ask("DELETE", "things/a", "*")
    assert things.sizes == {}


async def test_of_two_changes_at_once_one_is_refused() -> None:
    things = Things()
    tag = (await things.ask("GET", "things/a")).headers["ETag"]
    both = await asyncio.gather(
        things.ask("PATCH", "things/a", tag, size=2),
        things.ask("PATCH", "things/%61", tag, size=3),
        return_exceptions=True,
    )
    assert [isinstance(each, Problem) for each in both] == [False, True]
    assert things.sizes == {"a": 2}


async def test_what_does_not_exist_matches_nothing() -> None:
    things = Things()
    for match in ("*", '"x"'):
        assert await things.refused("PUT", "things/b", match) == FAILED
        # The answer without a condition comes first.
        assert await things.refused("DELETE", "things/b", match) == (404, "UNKNOWN_ENTRY")
    await things.ask("PUT", "things/b", size=4)
    assert things.sizes["b"] == 4


@pytest.mark.parametrize("match", ['"a"', 'W/"x", "a"', ' , "b,c","a" ,', "*", " * ", ""])
def test_one_tag_of_a_list_is_enough(match: str) -> None:
    check_match(match, '"a"')


@pytest.mark.parametrize(
    ("match", "status"),
    [('W/"a"', 412), ('"A"', 412), ('"b,a"', 412), (",", 412), ('"a" "b"', 400), ("a", 400),
     ('"a', 400), ('"a b"', 400), ("*, *", 400)],
)  # fmt: skip
def test_only_a_strong_tag_matches(match: str, status: int) -> None:
    with pytest.raises(Problem) as caught:
        check_match(match, '"a"')
    assert caught.value.status == status


def test_a_change_needs_something_to_compare_with() -> None:
    things = Things()
    get = AdminRoute("GET", "t/{n}", things.get, Thing, OwnQuery, own=True, tagged=True)
    put = AdminRoute("PUT", "t/{n}", things.put, Thing, ChangeQuery, Size, tagged=True)
    for routes in ([put], [get]):
        with pytest.raises(PluginError, match="tagged"):
            RouteTable(routes)
