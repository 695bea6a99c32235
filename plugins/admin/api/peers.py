"""What the admin APIs of two nodes say to each other: a request with its caller, and its answer.

JSON, carried by `Peer.Administer` (docs/formats/peer.md); only brokers of the cluster can send it.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from lakemq.broker_core.api.access import Rule
from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.errors import (
    InvalidRequest,
    OutcomeUnknown,
    Unavailable,
    UnknownNode,
)
from lakemq.broker_core.api.types import AccessContext, Principal
from lakemq.plugins.admin.api.problems import Problem, problem_of

MESSAGE_MAX_BYTES: Final = 24 * 1024 * 1024
"""A body of 16 MiB in base64, and what goes with it."""
FORWARDED_WAIT_MAX_MS: Final = 2_000
"""How long a request waits for records of another node: less than a call of a node may take. Who
asked for more asks again."""
_AT_ONCE: Final = 3
"""Calls of one node to another at a time, of the eight that it may have open there."""
_READS_AT_ONCE: Final = 2
"""The same of those that read records, which may wait: who reads must not keep operators out."""
_READS_QUEUED_MAX: Final = 64
"""Reads of one node's records that wait for their turn."""


@dataclass(frozen=True)
class PeerCall:
    """A request that another node shall carry out."""

    method: str
    path: str
    query: Sequence[tuple[str, str]]
    body: bytes
    content_type: str
    principal: Principal
    context: AccessContext

    def encode(self) -> bytes:
        """As it travels."""
        return json.dumps(
            {
                "method": self.method,
                "path": self.path,
                "query": list(self.query),
                "body": base64.b64encode(self.body).decode(),
                "content_type": self.content_type,
                "principal": {**asdict(self.principal), "attributes": dict(
                    self.principal.attributes
                )},
                "context": list(self.context),
            }
        ).encode()  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> PeerCall:
        """Inverse. Raises InvalidRequest."""
        try:
            if len(data) > MESSAGE_MAX_BYTES:
                raise ValueError(f"{len(data)} bytes; {MESSAGE_MAX_BYTES} is the most")
            found: Any = json.loads(data)
            return cls(
                str(found["method"]),
                str(found["path"]),
                [(str(name), str(value)) for name, value in found["query"]],
                base64.b64decode(found["body"]),
                str(found["content_type"]),
                _principal(found["principal"]),
                AccessContext(*found["context"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidRequest(f"a node's request can't be read: {error}") from None


def _principal(found: Mapping[str, Any]) -> Principal:
    """Whole, with the rules of its token: it may do no more on this node than on the other."""
    rules = tuple(map(_rule, found["rules"]))
    return Principal(**{**found, "roles": tuple(found["roles"]), "rules": rules})


def _rule(found: Mapping[str, Any]) -> Rule:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
    }
    return Rule(**values)


@dataclass(frozen=True)
class PeerReply:
    """What came of it."""

    status: int
    body: bytes
    notes: Mapping[str, object]
    """For the audit log of the node that was asked first."""

    def encode(self) -> bytes:
        """As it travels."""
        head = json.dumps({"status": self.status, "notes": dict(self.notes)}).encode()
        return head + b"\n" + self.body

    @classmethod
    def decode(cls, data: bytes) -> PeerReply:
        """Inverse. Raises OutcomeUnknown."""
        head, _, body = data.partition(b"\n")
        try:
            found: Any = json.loads(head)
            return cls(int(found["status"]), body, dict(found["notes"]))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise OutcomeUnknown(f"a node's answer can't be read: {error}") from None

    def problem(self) -> Problem:
        """Of a status of 400 and more."""
        try:
            found: Any = json.loads(self.body)
            if found["code"] == OutcomeUnknown.code:  # 503 and retriable, of older nodes
                return problem_of(OutcomeUnknown(str(found["detail"])))
            return Problem(
                self.status, str(found["code"]), str(found["detail"]),
                retriable=bool(found["retriable"]),
            )  # fmt: skip
        except (ValueError, TypeError, KeyError, RecursionError):
            return Problem(502, "UNAVAILABLE", "a node's answer can't be read", retriable=True)


class PeerCalls:
    """Asks other nodes, some requests at a time."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node
        self._room: dict[str, asyncio.Semaphore] = {}
        self._reads: dict[str, asyncio.Semaphore] = {}
        self._reading: Counter[str] = Counter()
        """Reads of each node that wait, or are under way."""

    async def ask(self, node_id: str, call: PeerCall, *, apart: bool = False) -> PeerReply:
        """`apart`: it reads records. Raises Unavailable, UnknownNode; OutcomeUnknown: a change
        that may have been made."""
        known = self._node.broker.nodes() if self._node.broker is not None else ()
        # None is known before the first answer of the MetaService.
        if known and all(each.node_id != node_id for each in known):
            raise UnknownNode(f"no node is named {node_id[:63]!r}; see /api/v1/nodes")
        if apart:
            return await self._read(node_id, call)
        room = self._room.setdefault(node_id, asyncio.Semaphore(_AT_ONCE))
        async with room:
            return await self._asked(node_id, call)

    async def _asked(self, node_id: str, call: PeerCall) -> PeerReply:
        """Raises Unavailable, OutcomeUnknown."""
        try:
            return PeerReply.decode(await self._node.ask(node_id, call.encode()))
        except OutcomeUnknown as error:
            if call.method == "GET":  # asked again it does no harm
                raise Unavailable(str(error)) from None
            raise OutcomeUnknown(
                f"{node_id} was asked and has not answered: it may have done it; look before you "
                f"ask again ({error})"
            ) from None

    async def _read(self, node_id: str, call: PeerCall) -> PeerReply:
        """Raises Unavailable."""
        if self._reading[node_id] >= _READS_QUEUED_MAX:
            raise Unavailable(f"{_READS_QUEUED_MAX} requests read records of {node_id}: try again")
        room = self._reads.setdefault(node_id, asyncio.Semaphore(_READS_AT_ONCE))
        self._reading[node_id] += 1
        try:
            async with room:
                return await self._asked(node_id, call)
        finally:
            self._reading[node_id] -= 1
