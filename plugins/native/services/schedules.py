"""The gRPC edge of `schedules.proto`: requests in, calls on the scheduler out."""

from __future__ import annotations

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.scheduling.schedules import ScheduleAsked
from lakemq.plugins.native.proto import schedules_pb2 as pb
from lakemq.plugins.native.proto.schedules_pb2_grpc import SchedulesServicer
from lakemq.plugins.native.server.authentication import Context, principal_of
from lakemq.plugins.native.server.convert import other_addresses
from lakemq.plugins.native.server.quotas import pay_for_writing, wait_to_write

_LISTED_MAX = 10_000


class ScheduleService(SchedulesServicer):
    """Implements `schedules.proto`; its docstrings are there."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def Schedule(self, request: pb.ScheduleRequest, context: Context) -> pb.ScheduleResponse:
        """Have a batch appended when its time comes. Raises InvalidRequest, and what
        `Schedules.schedule` raises."""
        principal = await principal_of(self._broker, context)
        await wait_to_write(self._broker, principal)
        pay_for_writing(self._broker, principal, request.batch)
        answer = await self._broker.schedules.schedule(
            ScheduleAsked(
                request.schedule_id,
                request.topic,
                request.partition,
                request.batch,
                self._due_ms(request),
                request.keep_timestamps,
            ),
            principal=principal,
        )
        return pb.ScheduleResponse(deliver_at_ms=answer.deliver_at_ms, duplicate=answer.duplicate)

    def _due_ms(self, request: pb.ScheduleRequest) -> int:
        for name in ("deliver_at_ms", "delay_ms"):
            if getattr(request, name) < 0:
                raise InvalidRequest(f"{name} is {getattr(request, name)}; it takes 0 and more")
        if request.deliver_at_ms and request.delay_ms:
            raise InvalidRequest("deliver_at_ms and delay_ms do not go together")
        return request.deliver_at_ms or self._broker.schedules.now_ms() + request.delay_ms

    async def CancelScheduled(
        self, request: pb.CancelScheduledRequest, context: Context
    ) -> pb.CancelScheduledResponse:
        """Cancel what was scheduled under an id. Raises what `Schedules.cancel` raises."""
        principal = await principal_of(self._broker, context)
        await self._broker.schedules.cancel(request.schedule_id, principal=principal)
        return pb.CancelScheduledResponse()

    async def ListScheduled(
        self, request: pb.ListScheduledRequest, context: Context
    ) -> pb.ListScheduledResponse:
        """What is scheduled for a topic, `count_max` at most. Raises InvalidRequest."""
        principal = await principal_of(self._broker, context)
        count_max = request.count_max or 1000
        if not 1 <= count_max <= _LISTED_MAX:
            raise InvalidRequest(f"count_max is {count_max}; it takes 1 to {_LISTED_MAX}")
        found = self._broker.schedules.describe(request.topic, count_max, principal=principal)
        return pb.ListScheduledResponse(
            scheduled=[
                pb.ScheduledDescription(
                    schedule_id=each.schedule_id,
                    topic=each.topic,
                    partition=each.partition,
                    deliver_at_ms=each.deliver_at_ms,
                    records=each.records,
                    size_bytes=each.size_bytes,
                )
                for each in found
            ],
            now_ms=self._broker.schedules.now_ms(),
            others=other_addresses(
                self._broker.node_id,
                self._broker.nodes(),
                self._broker.schedules.coordinators(),
            ),
        )
