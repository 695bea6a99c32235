"""The gRPC edge of `transactions.proto`: requests in, calls on the coordinator out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.transactions.ports import Transactions
from lakemq.broker_core.api.transactions.types import (
    SINK,
    TRANSACTION,
    Owner,
    OwnerStatus,
    StagedBatchId,
    Winner,
)
from lakemq.broker_core.api.types import Principal
from lakemq.plugins.native.config import NativeSettings
from lakemq.plugins.native.groups.messages import group_commit
from lakemq.plugins.native.proto import transactions_pb2 as pb
from lakemq.plugins.native.proto.transactions_pb2_grpc import TransactionsServicer
from lakemq.plugins.native.server.authentication import Context, principal_of
from lakemq.plugins.native.server.convert import error_message, other_addresses
from lakemq.plugins.native.server.quotas import pay_for_writing, wait_to_write
from lakemq.plugins.native.services.produce_window import Window

_KINDS = {pb.OWNER_KIND_SINK: SINK, pb.OWNER_KIND_TRANSACTION: TRANSACTION}
_NUMBERS = {name: kind for kind, name in _KINDS.items()}
_WINNERS_MAX = 1_000_000
_GROUPS_MAX = 100


class TransactionService(TransactionsServicer):
    """Implements `transactions.proto`; its docstrings are there."""

    def __init__(self, broker: Broker, settings: NativeSettings) -> None:
        self._broker = broker
        self.settings = settings

    @property
    def _transactions(self) -> Transactions:
        return self._broker.transactions

    async def OpenOwner(
        self, request: pb.OpenOwnerRequest, context: Context
    ) -> pb.OpenOwnerResponse:
        """Open an owner of staged batches, which fences what had it open before (KIP-98). Raises
        what `Transactions.open` raises."""
        principal = await principal_of(self._broker, context)
        opened = await self._transactions.open(
            owner_of(request.owner), principal=principal, timeout_ms=request.timeout_ms
        )
        return pb.OpenOwnerResponse(epoch=opened.epoch, last_batch_id=opened.last_batch_id)

    # -- staging

    async def Stage(
        self, request_iterator: AsyncIterator[pb.StageRequest], context: Context
    ) -> AsyncIterator[pb.StageResponse]:
        """Stage the batches of a stream; answers, errors of a batch too, come in its order."""
        principal = await principal_of(self._broker, context)
        window: Window[bool] = Window(self.settings.produce_bytes_in_flight_max)
        reader = asyncio.create_task(self._read(request_iterator, principal, window))
        try:
            while (pending := await window.next()) is not None:
                request_id, size, outcome = pending
                response = await _staged(request_id, outcome)
                window.answered(size)
                yield response
            await reader
        finally:
            reader.cancel()

    async def _read(
        self,
        requests: AsyncIterator[pb.StageRequest],
        principal: Principal,
        window: Window[bool],
    ) -> None:
        try:
            async for request in requests:
                await wait_to_write(self._broker, principal)
                pay_for_writing(self._broker, principal, request.batch)
                outcome = self._stage(request, principal)
                window.add(request.request_id, len(request.batch), outcome)
                await window.room()
        finally:
            window.end()

    def _stage(
        self, request: pb.StageRequest, principal: Principal
    ) -> asyncio.Future[bool] | LakeMQError:
        try:
            # The messages have signed numbers.
            for name in ("epoch", "batch_id", "task", "attempt", "number"):
                if getattr(request, name) < 0:
                    raise InvalidRequest(f"{name} is {getattr(request, name)}; it takes 0 and more")
            place = StagedBatchId(
                owner_of(request.owner),
                request.epoch,
                request.batch_id,
                request.task,
                request.attempt,
                request.number,
            )
            return self._transactions.stage(
                place, request.topic, request.partition, request.batch, principal=principal
            )
        except LakeMQError as error:
            return error

    # -- the end of it

    async def CommitStaged(
        self, request: pb.CommitStagedRequest, context: Context
    ) -> pb.CommitStagedResponse:
        """Commit the batches of the winning attempts, and offsets with them, or nothing. Raises
        InvalidRequest, and what `Transactions.commit` raises."""
        principal = await principal_of(self._broker, context)
        if len(request.winners) > _WINNERS_MAX or len(request.offsets) > _GROUPS_MAX:
            raise InvalidRequest(f"winners takes {_WINNERS_MAX} entries, offsets {_GROUPS_MAX}")
        answer = await self._transactions.commit(
            owner_of(request.owner),
            request.epoch,
            request.batch_id,
            [Winner(each.task, each.attempt, each.batches) for each in request.winners],
            principal=principal,
            effects=[
                self._broker.groups.effect(group_commit(each), principal=principal)
                for each in request.offsets
            ],
        )
        return pb.CommitStagedResponse(
            outcome=pb.CommitOutcome.ValueType(answer.outcome),
            last_batch_id=answer.last_batch_id,
            applied=answer.applied,
        )

    async def AbortStaged(
        self, request: pb.AbortStagedRequest, context: Context
    ) -> pb.AbortStagedResponse:
        """Delete what was staged under a batch id. Raises what `Transactions.abort` raises."""
        principal = await principal_of(self._broker, context)
        await self._transactions.abort(
            owner_of(request.owner), request.epoch, request.batch_id, principal=principal
        )
        return pb.AbortStagedResponse()

    async def ListOwners(
        self, request: pb.ListOwnersRequest, context: Context
    ) -> pb.ListOwnersResponse:
        """Owners of this node that the caller may describe."""
        principal = await principal_of(self._broker, context)
        found = self._transactions.describe(principal=principal)
        coordinators = self._transactions.coordinators()
        return pb.ListOwnersResponse(
            owners=[_described(each) for each in found],
            others=other_addresses(self._broker.node_id, self._broker.nodes(), coordinators),
        )

    async def FenceOwner(
        self, request: pb.FenceOwnerRequest, context: Context
    ) -> pb.FenceOwnerResponse:
        """Fence an owner: what has it open can neither stage nor commit, and what was staged is
        deleted. Raises what `Transactions.fence` raises."""
        principal = await principal_of(self._broker, context)
        await self._transactions.fence(owner_of(request.owner), principal=principal)
        return pb.FenceOwnerResponse()

    async def ForgetOwner(
        self, request: pb.ForgetOwnerRequest, context: Context
    ) -> pb.ForgetOwnerResponse:
        """Delete an owner. Raises what `Transactions.delete` raises."""
        principal = await principal_of(self._broker, context)
        await self._transactions.delete(owner_of(request.owner), principal=principal)
        return pb.ForgetOwnerResponse()


def owner_of(owner: pb.Owner) -> Owner:
    """Protobuf -> owner. Raises InvalidRequest: its kind is unknown."""
    if owner.kind not in _KINDS:
        raise InvalidRequest(f"owner.kind is {owner.kind}; it takes 1 (sink) or 2 (transaction)")
    return Owner(_KINDS[owner.kind], owner.name)


def _described(status: OwnerStatus) -> pb.OwnerDescription:
    return pb.OwnerDescription(
        owner=pb.Owner(kind=_NUMBERS[status.owner.kind], name=status.owner.name),
        epoch=status.epoch,
        last_batch_id=status.last_batch_id,
        state=status.state,
        staged_batches=status.staged_batches,
        staged_bytes=status.staged_bytes,
        timeout_ms=status.timeout_ms,
        detail=status.detail,
    )


async def _staged(request_id: int, outcome: asyncio.Future[bool] | LakeMQError) -> pb.StageResponse:
    try:
        if isinstance(outcome, LakeMQError):
            raise outcome
        return pb.StageResponse(request_id=request_id, duplicate=await outcome)
    except LakeMQError as error:
        return pb.StageResponse(request_id=request_id, error=error_message(error))
