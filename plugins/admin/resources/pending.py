"""What waits to be decided or delivered: sinks and transactions, scheduled records. What is asked
of one sink or transactional id goes to its coordinator; each node tells the schedules that it keeps
and delivers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import Field

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.routes import (
    EACH,
    AdminListing,
    AdminRequest,
    AdminRoute,
    Answer,
    AnyRoute,
    OwnChangeQuery,
    OwnPageQuery,
    expect,
)
from lakemq.broker_core.api.errors import UnknownSchedule, UnknownTransaction
from lakemq.broker_core.api.scheduling.schedules import ScheduledBatch
from lakemq.broker_core.api.transactions.types import SINK, TRANSACTION, Owner, OwnerStatus
from lakemq.plugins.admin.resources.brokers import broker_of

SCHEDULED_MAX: Final = 10_000
"""Scheduled batches of a node that are looked at, the next due first."""


class OwnerRow(Answer):
    """A sink or transactional id."""

    node: str
    kind: str
    """`sink` or `transaction`."""
    name: str
    state: str
    """`idle`, `staging` or `applying`."""
    epoch: int
    last_batch_id: int | None
    """Committed last; null: none was."""
    staged_batches: int
    staged_bytes: int
    timeout_ms: int
    detail: str


class OwnerChanged(Answer):
    """A sink or transactional id that was aborted or deleted, or would be."""

    kind: str
    name: str
    staged_batches: int
    """That are given up."""


class ScheduleRow(Answer):
    """Records that are appended later."""

    node: str
    schedule_id: str
    topic: str
    partition: int
    deliver_at_ms: int
    records: int
    size_bytes: int


class ScheduleQuery(OwnPageQuery):
    """Parameters of the list of scheduled records."""

    topic: str = Field(default="", max_length=249)
    """Only of this topic."""


class Cancelled(Answer):
    """Scheduled records that were cancelled, or would be."""

    schedule_id: str
    topic: str
    records: int


class PendingRoutes:
    """`/api/v1/transactions` and `/api/v1/schedules`."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node

    def routes(self) -> Sequence[AnyRoute]:
        """The routes. Rights are asked for owner by owner, topic by topic, where they act."""
        one = "transactions/{kind}/{name}"
        return [
            AdminListing("transactions", OwnerRow, self._owners, self._owner_rows,
                         lambda each: f"{each.owner.kind} {each.owner.name}",
                         {"name": lambda each: each.owner.name,
                          "staged_bytes": lambda each: each.staged_bytes,
                          "state": lambda each: each.state},
                         query=OwnPageQuery, need=EACH, own=True,
                         summary="List sinks and transactional ids, and what they have staged."),
            AdminRoute("POST", f"{one}/abort", self.abort, OwnerChanged, OwnChangeQuery, need=EACH,
                       owner=self._coordinator),
            AdminRoute("DELETE", one, self.delete, OwnerChanged, OwnChangeQuery, need=EACH,
                       owner=self._coordinator),
            AdminListing("schedules", ScheduleRow, self._schedules, self._schedule_rows,
                         lambda each: each.schedule_id,
                         {"deliver_at_ms": lambda each: each.deliver_at_ms,
                          "topic": lambda each: each.topic},
                         query=ScheduleQuery, need=EACH, own=True,
                         summary="List scheduled records, the next due first."),
            AdminRoute("DELETE", "schedules/{schedule_id}", self.cancel, Cancelled, OwnChangeQuery,
                       need=EACH, own=True),
        ]  # fmt: skip

    # -- transactions

    def _coordinator(self, request: AdminRequest) -> str:
        """The node that is named, or the one that coordinates the owner."""
        named = request.asked.node if isinstance(request.asked, OwnChangeQuery) else ""
        wanted = Owner(request.path["kind"], request.path["name"])
        if named or wanted.kind not in (SINK, TRANSACTION):
            return named
        return broker_of(self._node).transactions.coordinator_of(wanted)

    async def _owners(self, request: AdminRequest) -> Sequence[OwnerStatus]:
        return broker_of(self._node).transactions.describe(principal=request.principal)

    async def _owner_rows(
        self, owners: Sequence[OwnerStatus], request: AdminRequest
    ) -> Sequence[OwnerRow]:
        return [
            OwnerRow(
                node=self._node.node_id,
                kind=each.owner.kind,
                name=each.owner.name,
                state=each.state,
                epoch=each.epoch,
                last_batch_id=each.last_batch_id if each.last_batch_id >= 0 else None,
                staged_batches=each.staged_batches,
                staged_bytes=each.staged_bytes,
                timeout_ms=each.timeout_ms,
                detail=each.detail,
            )
            for each in owners
        ]

    async def _owner(self, request: AdminRequest) -> OwnerStatus:
        """Raises UnknownTransaction."""
        wanted = Owner(request.path["kind"], request.path["name"])
        for each in await self._owners(request):
            if each.owner == wanted and wanted.kind in (SINK, TRANSACTION):
                request.notes["before"] = {
                    "state": each.state, "staged_batches": each.staged_batches
                }  # fmt: skip
                return each
        raise UnknownTransaction(
            f"there is no {wanted.kind[:20]} {wanted.name[:100]} on {self._node.node_id}"
        )

    async def abort(self, request: AdminRequest) -> OwnerChanged:
        """Fence the producer of a sink or transactional id, and abort what it has staged."""
        found = await self._owner(request)
        if not expect(request.asked, OwnChangeQuery).dry_run:
            await broker_of(self._node).transactions.fence(found.owner, principal=request.principal)
        return _changed(found)

    async def delete(self, request: AdminRequest) -> OwnerChanged:
        """Delete a sink or transactional id, with the id of the batch that it committed last."""
        found = await self._owner(request)
        if not expect(request.asked, OwnChangeQuery).dry_run:
            await broker_of(self._node).transactions.delete(
                found.owner, principal=request.principal
            )
        return _changed(found)

    # -- schedules

    async def _schedules(self, request: AdminRequest) -> Sequence[ScheduledBatch]:
        asked = request.asked
        topic = asked.topic if isinstance(asked, ScheduleQuery) else ""
        return broker_of(self._node).schedules.describe(
            topic, SCHEDULED_MAX, principal=request.principal
        )

    async def _schedule_rows(
        self, found: Sequence[ScheduledBatch], request: AdminRequest
    ) -> Sequence[ScheduleRow]:
        return [
            ScheduleRow(
                node=self._node.node_id,
                schedule_id=each.schedule_id,
                topic=each.topic,
                partition=each.partition,
                deliver_at_ms=each.deliver_at_ms,
                records=each.records,
                size_bytes=each.size_bytes,
            )
            for each in found
        ]

    async def cancel(self, request: AdminRequest) -> Cancelled:
        """Cancel scheduled records: they are not delivered. Raises UnknownSchedule."""
        wanted = request.path["schedule_id"]
        for each in await self._schedules(request):
            if each.schedule_id == wanted:
                break
        else:
            raise UnknownSchedule(f"nothing is scheduled as {wanted[:100]!r}")
        request.notes["before"] = {"topic": each.topic, "deliver_at_ms": each.deliver_at_ms}
        if not expect(request.asked, OwnChangeQuery).dry_run:
            await broker_of(self._node).schedules.cancel(wanted, principal=request.principal)
        return Cancelled(schedule_id=wanted, topic=each.topic, records=each.records)


def _changed(found: OwnerStatus) -> OwnerChanged:
    return OwnerChanged(
        kind=found.owner.kind, name=found.owner.name, staged_batches=found.staged_batches
    )
