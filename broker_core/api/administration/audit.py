"""What the audit log keeps of each change that an operator makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from lakemq.broker_core.api.types import AccessContext, Principal

AUDIT_TOPIC: Final = "__audit"
"""Internal topic that holds the log."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an operator did, or tried."""

    principal: Principal
    context: AccessContext
    action: str
    """Like `topic.delete`, or method and path of a request."""
    resource: str
    """What it was done to, like `topic:readings`."""
    outcome: str = "done"
    """`done`, or the code of the error."""
    detail: str = ""
    """The error in words."""
    request: Mapping[str, object] = field(default_factory=dict)
    """What was asked for, without secrets."""
    before: object = None
    after: object = None
    by: str = "api"
    """`api`, `native` (an SDK, or a command that uses it) or `meta` (the MetaService's port)."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change as the log has it."""

    at_ms: int
    node: str
    """Where it was made."""
    offset: int
    who: str
    """`user:ann`, `anonymous`, `node:n1`, or names of a certificate."""
    from_host: str
    by: str
    action: str
    resource: str
    outcome: str
    detail: str
    request: Mapping[str, object]
    before: object
    after: object


class AuditLog(Protocol):
    """The log of this node."""

    async def note(self, change: Change) -> None:
        """Keep a change: on disk when it returns. Never raises; what can't be kept is logged and
        counted, since the change has been made."""

    async def newest(self, count: int, before_ms: int | None = None) -> Sequence[AuditEntry]:
        """At most `count` entries older than a time (None: of all), the newest first."""
