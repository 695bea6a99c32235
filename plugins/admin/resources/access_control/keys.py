"""API keys: bearer tokens for programs. Who makes them can give itself every right."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.operations import KeyReport
from lakemq.broker_core.api.administration.routes import (
    AdminListing,
    AdminRequest,
    AdminRoute,
    Answer,
    AnyRoute,
    Body,
    ChangeQuery,
    Need,
    NoQuery,
    OwnQuery,
    PageQuery,
    expect,
)
from lakemq.broker_core.api.errors import LakeMQError, UnknownEntry
from lakemq.broker_core.api.types import Operation
from lakemq.plugins.admin.resources.access_control.access import DeletedEntry

_GRANT = Need(Operation.CREATE)
_AGE_MAX_S = 10 * 366 * 86_400


class KeyAnswer(Answer):
    """An API key; never its text."""

    id: str
    says: str
    """What it is for."""
    roles: list[str]
    made_by: str
    made_ms: int
    expires_ms: int | None
    """Null: never."""
    last_used_ms: int | None
    """Shown last to a node that answers; null: not since those nodes started."""


class NewKeyBody(Body):
    """A key to be made."""

    says: str = Field(min_length=1, max_length=200)
    """What it is for."""
    roles: list[str] = Field(default_factory=list, max_length=100)
    expires_s: int | None = Field(default=None, ge=1, le=_AGE_MAX_S)
    """How long it is good; left out: until it is revoked."""


class KeyMade(KeyAnswer):
    """A new API key."""

    key: str
    """For `Authorization: Bearer`. It is told here, and never again."""


class KeyUses(Answer):
    """When a node was shown keys last."""

    node: str
    uses: dict[str, int]


class KeyRoutes:
    """`/api/v1/keys`."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        return [
            AdminListing("keys", KeyAnswer, self._all, self._rows,
                         lambda each: f"{each.key_id} {each.says}",
                         {"id": lambda each: each.key_id, "says": lambda each: each.says,
                          "made_ms": lambda each: each.made_ms},
                         query=PageQuery, summary="List API keys."),
            AdminRoute("POST", "keys", self.add, KeyMade, NoQuery, NewKeyBody, need=_GRANT,
                       status=201),
            AdminRoute("DELETE", "keys/{key}", self.revoke, DeletedEntry, ChangeQuery,
                       need=_GRANT),
            AdminRoute("GET", "key-uses", self.uses, KeyUses, OwnQuery, own=True),
        ]  # fmt: skip

    async def _all(self, request: AdminRequest) -> Sequence[KeyReport]:
        return await self._node.operations.keys()

    async def _rows(self, keys: Sequence[KeyReport], request: AdminRequest) -> Sequence[KeyAnswer]:
        uses: dict[str, int] = {}
        for node in self._nodes():
            try:
                told = (await request.ask("key-uses", {"node": node}))["uses"]
            except LakeMQError:  # it does not answer: what the others know counts
                continue
            for key_id, at_ms in told.items():
                uses[key_id] = max(at_ms, uses.get(key_id, 0))
        return [KeyAnswer.model_validate(_shown(each, uses.get(each.key_id))) for each in keys]

    def _nodes(self) -> Sequence[str]:
        broker = self._node.broker
        others = [] if broker is None else broker.nodes()
        return sorted({self._node.node_id, *(e.node_id for e in others if "peer" in e.addresses)})

    async def uses(self, request: AdminRequest) -> KeyUses:
        """Tell when a node was shown API keys last, since it started."""
        return KeyUses(node=self._node.node_id, uses=dict(self._node.operations.key_uses()))

    async def add(self, request: AdminRequest) -> KeyMade:
        """Make an API key. Its text is in this answer, and nowhere else."""
        given = expect(request.given, NewKeyBody)
        expires_ms = None
        if given.expires_s is not None:
            expires_ms = self._node.now_ms() + 1000 * given.expires_s
        made, text = await self._node.operations.add_key(
            given.says, given.roles, request.principal.name, expires_ms
        )
        request.notes["after"] = _shown(made, None)
        return KeyMade.model_validate({**_shown(made, None), "key": text})

    async def revoke(self, request: AdminRequest) -> DeletedEntry:
        """Revoke an API key: it opens nothing any more, and what it opened ends. Raises
        UnknownEntry."""
        wanted = request.path["key"]
        for each in await self._node.operations.keys():
            if each.key_id == wanted:
                request.notes["before"] = _shown(each, None)
                break
        else:
            raise UnknownEntry(f"there is no API key {wanted[:100]}")
        if not expect(request.asked, ChangeQuery).dry_run:
            await self._node.operations.delete_key(wanted)
        return DeletedEntry(name=wanted)


def _shown(key: KeyReport, last_used_ms: int | None) -> dict[str, object]:
    return {
        "id": key.key_id, "says": key.says, "roles": list(key.roles), "made_by": key.made_by,
        "made_ms": key.made_ms, "expires_ms": key.expires_ms, "last_used_ms": last_used_ms,
    }  # fmt: skip
