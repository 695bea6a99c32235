"""The audit log: who changed what, when, from where."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import Field

from lakemq.broker_core.api.administration.audit import AuditEntry
from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.routes import (
    AdminListing,
    AdminRequest,
    Answer,
    AnyRoute,
    OwnPageQuery,
    TimeMs,
    expect,
)

LOOKED_MAX: Final = 2_000
"""Changes of each node that are looked at, the newest before `until_ms`."""


class AuditRow(Answer):
    """A change, or an attempt."""

    at: datetime
    at_ms: int
    node: str
    """Where it was asked for."""
    offset: int
    """In that node's log, the topic `__audit`."""
    who: str
    """`user:NAME`, `anonymous`, or the names of a certificate."""
    from_host: str
    by: str
    """`api`, `native` or `meta`."""
    action: str
    resource: str
    outcome: str
    """`done`, or the code of the error."""
    detail: str
    request: dict[str, Any]
    before: Any
    after: Any


class AuditQuery(OwnPageQuery):
    """Which changes; `q` looks in action and resource."""

    who: str = Field(default="", max_length=256)
    """Only of this one."""
    outcome: str = Field(default="", max_length=64)
    since_ms: TimeMs | None = None
    """Not older (ms since 1970, UTC)."""
    until_ms: TimeMs | None = None
    """Older than this. The list is made of the newest 2,000 changes of each node before it, of
    fewer where they take more than 8 MiB."""


class AuditRoutes:
    """`/api/v1/audit`."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        return [
            AdminListing(
                "audit", AuditRow, self._all, self._rows,
                lambda each: f"{each.action} {each.resource} {each.offset:020d}",
                {"at_ms": lambda each: each.at_ms, "who": lambda each: each.who,
                 "action": lambda each: each.action},
                keep=_is_wanted, query=AuditQuery, own=True, descending=True,
                summary="List changes, the newest first.",
            )
        ]  # fmt: skip

    async def _all(self, request: AdminRequest) -> Sequence[AuditEntry]:
        asked = expect(request.asked, AuditQuery)
        return await self._node.audit.newest(LOOKED_MAX, asked.until_ms)

    async def _rows(
        self, entries: Sequence[AuditEntry], request: AdminRequest
    ) -> Sequence[AuditRow]:
        return [_row(each) for each in entries]


def _is_wanted(entry: AuditEntry, request: AdminRequest) -> bool:
    asked = expect(request.asked, AuditQuery)
    return (
        asked.who in ("", entry.who)
        and asked.outcome in ("", entry.outcome)
        and (asked.since_ms is None or entry.at_ms >= asked.since_ms)
    )


def _row(entry: AuditEntry) -> AuditRow:
    return AuditRow(
        at=datetime.fromtimestamp(entry.at_ms / 1000, UTC),
        at_ms=entry.at_ms,
        node=entry.node,
        offset=entry.offset,
        who=entry.who,
        from_host=entry.from_host,
        by=entry.by,
        action=entry.action,
        resource=entry.resource,
        outcome=entry.outcome,
        detail=entry.detail,
        request=dict(entry.request),
        before=entry.before,
        after=entry.after,
    )
