"""The MetaService: members of its Raft group, who leads it, a backup of the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic import Field

from lakemq.broker_core.api.administration.meta_group import HEAD_BYTES, Member
from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.routes import (
    AdminListing,
    AdminRequest,
    AdminRoute,
    Answer,
    AnyRoute,
    Body,
    ChangeQuery,
    Download,
    Need,
    NoQuery,
    expect,
)
from lakemq.broker_core.api.errors import InvalidRequest, UnknownNode
from lakemq.broker_core.api.types import Operation


class MemberRow(Answer):
    """A member of the MetaService's group."""

    member: str
    """Node id."""
    role: str
    """`leader`, `voter` or `learner`: one that has joined and does not vote yet."""


class Voters(Answer):
    """The group behind a change, or as it would be."""

    voters: list[str]


class TransferBody(Body):
    """Who shall lead."""

    member: str = Field(default="", max_length=63)
    """A voter; empty: one that has the whole log."""


class Transferred(Answer):
    """A transfer that has begun: `GET meta/members` tells who leads."""

    before: str | None
    """Who led; null: unknown."""
    wanted: str
    """Empty: one that has the whole log."""


class MetaRoutes:
    """`/api/v1/meta`."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        one = "meta/members/{member}"
        return [
            AdminListing("meta/members", MemberRow, self._all, self._rows, lambda each: each.name,
                         {"member": lambda each: each.name, "role": lambda each: each.role},
                         summary="List the members of the MetaService's Raft group."),
            AdminRoute("POST", f"{one}/promote", self.promote, Voters, ChangeQuery),
            AdminRoute("DELETE", one, self.remove, Voters, ChangeQuery),
            AdminRoute("POST", "meta/transfer", self.transfer, Transferred, ChangeQuery,
                       TransferBody, status=202),
            # Hashes of passwords and keys are in it: who has it can try as many as there are.
            AdminRoute("POST", "meta/backup", self.backup, None, NoQuery, download=True,
                       need=Need(Operation.CREATE)),
        ]  # fmt: skip

    async def _all(self, request: AdminRequest) -> Sequence[Member]:
        return await self._node.group.members()

    async def _rows(self, members: Sequence[Member], request: AdminRequest) -> list[MemberRow]:
        return [MemberRow(member=each.name, role=each.role) for each in members]

    async def _find(self, request: AdminRequest) -> tuple[Member, list[str]]:
        """The member that is meant, and all voters. Raises UnknownNode."""
        members, wanted = await self._node.group.members(), request.path["member"]
        voters = [each.name for each in members if each.role != "learner"]
        request.notes["before"] = voters
        return _named(members, wanted), voters

    async def promote(self, request: AdminRequest) -> Voters:
        """Make a learner a voter. A node that joins is promoted by itself; this is for one whose
        promotion was interrupted. Raises UnknownNode, InvalidRequest."""
        found, voters = await self._find(request)
        if found.role != "learner":
            raise InvalidRequest(f"{found.name} is a voter already")
        if _is_dry(request):
            return Voters(voters=sorted([*voters, found.name]))
        return _changed(request, await self._node.group.promote(found.name))

    async def remove(self, request: AdminRequest) -> Voters:
        """Take a member out of the group, dead or alive; stop its node afterwards. A leader hands
        its leadership over first. Raises UnknownNode, InvalidRequest."""
        found, voters = await self._find(request)
        if voters == [found.name]:
            raise InvalidRequest(f"{found.name} is the only voter: the catalog would be gone")
        if _is_dry(request):
            return Voters(voters=[each for each in voters if each != found.name])
        return _changed(request, await self._node.group.remove(found.name))

    async def transfer(self, request: AdminRequest) -> Transferred:
        """Transfer leadership of the group to another voter. Raises UnknownNode, InvalidRequest,
        Unavailable: no such voter has the whole log now."""
        wanted = expect(request.given, TransferBody).member
        members = await self._node.group.members()
        leader = next((each.name for each in members if each.role == "leader"), None)
        request.notes["before"] = leader
        if wanted and _named(members, wanted).role != "voter":
            raise InvalidRequest(f"{wanted} leads already, or has no vote")
        if not any(each.role == "voter" for each in members):
            raise InvalidRequest("there is no other voter that could lead")
        if not _is_dry(request):
            await self._node.group.transfer(wanted)
        return Transferred(before=leader, wanted=wanted)

    async def backup(self, request: AdminRequest) -> Download:
        """Download a consistent copy of the catalog, as `lakemq meta backup` writes it and
        `lakemq meta verify` and `restore` take it. Raises Unavailable."""
        note, content = await self._node.group.backup()
        size = HEAD_BYTES + note.size
        request.notes["after"] = {"log_index": note.log_index, "bytes": size}
        at = datetime.fromtimestamp(self._node.now_ms() / 1000, UTC)
        return Download(f"catalog-{at:%Y%m%dT%H%M%SZ}.backup", size, content)


def _named(members: Sequence[Member], wanted: str) -> Member:
    for each in members:
        if each.name == wanted:
            return each
    raise UnknownNode(f"no member is named {wanted[:63]!r}; see /api/v1/meta/members")


def _changed(request: AdminRequest, voters: Sequence[str]) -> Voters:
    found = Voters(voters=sorted(voters))
    request.notes["after"] = found.voters
    return found


def _is_dry(request: AdminRequest) -> bool:
    return expect(request.asked, ChangeQuery).dry_run
