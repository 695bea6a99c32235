"""MQTT sessions and shared subscriptions of a cluster: who serves them now. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

NEVER: Final = 0xFFFF_FFFF
"""A session expiry interval that never ends (MQTT 5, section 3.1.2.11.2)."""


@dataclass(frozen=True, slots=True)
class MqttSession:
    """A client's session. One node serves it, in one epoch."""

    client_id: str
    node_id: str
    epoch: int
    """Revision of the claim: higher with every claim. Who has an older one is refused."""
    connected: bool
    expiry_s: int
    """Seconds that it outlives its connection; `NEVER`: for ever."""
    ends_ms: int
    """When it ends (ms since 1970, UTC); 0: not yet known, or never."""
    state: bytes = field(repr=False)
    """Subscriptions and the like, as the MQTT room encodes them; at most 64 KiB."""
    revision: int


@dataclass(frozen=True, slots=True)
class Claim:
    """What a node gets that takes a session over."""

    epoch: int
    previous_node: str | None
    """Who served it before and must let go; None: nobody did."""
    present: bool
    """There was a session and it goes on."""
    state: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """A shared subscription, `$share/<group>/<topic filter>`, and who takes part."""

    group: str
    topic_filter: str
    epoch: int
    """Revision of its last change."""
    coordinator: str
    """The node that hands the records out: one that has members, kept as long as it has."""
    members: tuple[tuple[str, str], ...]
    """(client id, node id), in the order in which they joined."""


@dataclass(frozen=True, slots=True)
class MqttChange:
    """A session or a group was changed, or has ended (`session` and `shared` are None)."""

    revision: int
    client_id: str | None
    """Of a session; None: it is a group."""
    group: tuple[str, str] | None
    """(group, topic filter)."""
    session: MqttSession | None
    shared: SharedGroup | None


class MqttPort(Protocol):
    """Part of `MetaClient`."""

    async def claim_session(
        self, client_id: str, node_id: str, *, clean_start: bool, expiry_s: int
    ) -> Claim:
        """Serve a client from now on; whoever served it before sees it in `watch_mqtt`."""

    async def save_session(self, client_id: str, epoch: int, state: bytes) -> int:
        """Raises CompareFailed when somebody else has claimed it, NotFound when it has ended."""

    async def release_session(
        self, client_id: str, epoch: int, *, expiry_s: int | None = None
    ) -> None:
        """The connection has ended: the session ends too, after `expiry_s` (None: as claimed)."""

    async def end_session(self, client_id: str, epoch: int | None = None) -> None:
        """At once. With an epoch only in that one. Raises NotFound, CompareFailed."""

    async def session(self, client_id: str) -> MqttSession | None: ...

    async def sessions(self) -> tuple[int, Sequence[MqttSession]]:
        """(revision, all sessions by client id)."""

    async def join_shared(
        self, group: str, topic_filter: str, client_id: str, node_id: str
    ) -> SharedGroup:
        """Raises Overloaded when it has 4,096 members."""

    async def leave_shared(self, group: str, topic_filter: str, client_id: str) -> None:
        """Raises NotFound. The group ends with its last member."""

    async def shared_groups(self) -> tuple[int, Sequence[SharedGroup]]: ...

    def watch_mqtt(self, start_revision: int) -> AsyncIterator[MqttChange]:
        """Changes from that revision on, no gap, no repeat. Raises Compacted."""
