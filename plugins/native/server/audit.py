"""What operators change by the native protocol, noted in the audit log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.json_format import MessageToDict

from lakemq.broker_core.api.administration.audit import Change
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.types import AccessContext
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.server.authentication import Context, host_of, principal_of
from lakemq.plugins.native.wire.exports import GROUP_PREFIX


class ChangeOf(NamedTuple):
    """How a method is named in the log, and which fields of its request name what it changes."""

    action: str
    fields: tuple[str, ...]


CHANGES: Final[Mapping[str, ChangeOf]] = {
    "CreateTopic": ChangeOf("topic.create", ("name",)),
    "AlterTopic": ChangeOf("topic.alter", ("name",)),
    "DeleteTopic": ChangeOf("topic.delete", ("name",)),
    "DeleteRecords": ChangeOf("topic.delete-records", ("topic",)),
    "CommitOffsets": ChangeOf("group.reset", ("group",)),
    "DeleteGroup": ChangeOf("group.delete", ("group",)),
    "AlterQueue": ChangeOf("queue.alter", ("group", "topic")),
    "ResetQueue": ChangeOf("queue.reset", ("group", "topic")),
    "DeleteQueue": ChangeOf("queue.delete", ("group", "topic")),
    "RegisterSchema": ChangeOf("schema.register", ("subject",)),
    "DeleteSchema": ChangeOf("schema.delete", ("subject",)),
    "SetCompatibility": ChangeOf("schema.set-compatibility", ("subject",)),
    "FenceOwner": ChangeOf("transaction.abort", ("owner",)),
    "ForgetOwner": ChangeOf("transaction.delete", ("owner",)),
    "CancelScheduled": ChangeOf("schedule.cancel", ("schedule_id",)),
}
"""Methods that change something of an operator's; all else is data."""
Behavior = Callable[[Any, Context], Awaitable[Any]]


def audited(broker: Broker, change: ChangeOf, behavior: Behavior) -> Behavior:
    """The method, which notes what it did before it is answered."""

    async def answer(request: Any, context: Context) -> Any:
        # A member commits what it has read, and an export tells how far it is: nothing is read from
        # there.
        if getattr(request, "member_id", "") or _is_told(request):
            return await behavior(request, context)
        try:
            found = await behavior(request, context)
        except LakeMQError as error:
            await note(request, context, error)
            raise
        await note(request, context, None)
        return found

    async def note(request: Any, context: Context, error: LakeMQError | None) -> None:
        asked = MessageToDict(request, preserving_proto_field_name=True)
        await broker.audit.note(
            Change(
                await principal_of(broker, context),
                AccessContext("native", peer_host=host_of(context), listener="native"),
                change.action,
                "/".join(_named(asked.get(each, "")) for each in change.fields),
                "done" if error is None else error.code,
                "" if error is None else str(error),
                asked,
                by="native",
            )
        )

    return answer


def _named(value: object) -> str:
    return "/".join(map(str, value.values())) if isinstance(value, dict) else str(value)


def _is_told(request: Any) -> bool:
    return isinstance(request, pb.CommitOffsetsRequest) and request.group.startswith(GROUP_PREFIX)
