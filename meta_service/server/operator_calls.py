"""What operators change at a member's own port, told to what keeps an audit log.

Brokers come by the same port; they tell by their `user-agent` that they do, and note themselves
what their clients asked them for. Both kinds of callers may do everything there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import grpc

from lakemq.meta_service.api.remote.client import NODE_AGENT
from lakemq.meta_service.server.failures import Context

_CHANGES: Final = {
    "Cluster/DrainNode": "node.drain",
    "Cluster/UndrainNode": "node.undrain",
    "Cluster/RemoveNode": "node.remove",
    "Cluster/Rebalance": "cluster.rebalance",
    "Topics/Create": "topic.create",
    "Topics/Alter": "topic.alter",
    "Topics/Delete": "topic.delete",
    "Topics/Move": "partition.move",
    "Topics/ElectPreferred": "partition.elect",
    "Topics/ElectUnclean": "partition.elect-unclean",
    "Auth/Put": "access.put",
    "Auth/Delete": "access.delete",
    "Schemas/Register": "schema.register",
    "Schemas/Delete": "schema.delete",
    "Schemas/SetCompatibility": "schema.set-compatibility",
    "Maintenance/TransferLeadership": "meta.transfer",
    "Maintenance/ChangeGroup": "meta.change-group",
}
_NAMES: Final = frozenset(
    {"node_id", "member_id", "topic", "partition", "subject", "name", "rule_id", "principal"}
)
"""Fields that say what is changed. No other is told: some are secret."""
_DEPTH_MAX: Final = 3
_NAMED_MAX: Final = 500
_ELSEWHERE: Final = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE)
"""This member could not do it; the caller asks another one."""


class OperatorCall(NamedTuple):
    """A change that an operator asked for."""

    who: str
    """Names of its certificate; empty: a local user, in plain text."""
    host: str
    action: str
    resource: str
    code: str
    """Of the refusal, as gRPC has it; empty: it was done."""
    detail: str


Observe = Callable[[OperatorCall], Awaitable[None]]


def observed(method: str, answer: Any, who: Callable[[Context], str], observe: Observe) -> Any:
    """The method, which tells `observe` what an operator has changed before it answers; the
    method itself where it changes nothing. `method`: its full name."""
    action = _CHANGES.get(method.removeprefix("/lakemq.meta.v1."))
    if action is None:
        return answer

    async def told(request: Any, context: Context) -> Any:
        agent = dict(context.invocation_metadata() or ()).get("user-agent", "")
        if str(agent).startswith(NODE_AGENT) or getattr(request, "action", None) == 0:
            return await answer(request, context)  # a broker, or a plan that moves nothing
        host = context.peer().partition(":")[2].rpartition(":")[0]
        call = OperatorCall(who(context), host, action, "/".join(_names(request)), "", "")
        try:
            found = await answer(request, context)
        except grpc.aio.AbortError:
            code = context.code()
            if code not in _ELSEWHERE:  # the caller has been answered already
                detail = str(context.details() or "")
                await observe(call._replace(code=code.name, detail=detail[:_NAMED_MAX]))
            raise
        await observe(call)
        return found

    return told


def _names(message: Any, depth: int = 0) -> list[str]:
    """What the message names, of itself and of messages in it."""
    found: list[str] = []
    for field, value in message.ListFields():
        inner = field.message_type
        if inner is None:
            found += [str(value)[:_NAMED_MAX]] if field.name in _NAMES else []
        elif depth < _DEPTH_MAX and field.name != "once" and not inner.GetOptions().map_entry:
            for each in value[:1] if field.is_repeated else (value,):
                found += _names(each, depth + 1)
    return found
