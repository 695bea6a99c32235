"""The node as the admin API sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lakemq.broker_core.api.administration.audit import AuditLog
from lakemq.broker_core.api.administration.routes import AnyRoute
from lakemq.broker_core.api.administration.settings import NodeConfiguration
from lakemq.broker_core.api.ports import Broker, Credentials
from lakemq.broker_core.api.types import (
    NO_CONTEXT,
    AccessContext,
    Operation,
    PartitionStatus,
    Principal,
    Resource,
    TopicInfo,
)

if TYPE_CHECKING:
    from lakemq.broker_core.api.administration.meta_group import GroupOperations
    from lakemq.broker_core.api.administration.operations import ClusterOperations


class CatalogAccess(Protocol):
    """What every node has, a broker or a member of the MetaService alone; as the methods of
    `Broker` of these names."""

    def topics(self) -> Sequence[TopicInfo]:
        """All topics of the catalog."""

    def topic(self, name: str) -> TopicInfo:
        """Raises UnknownTopic."""

    def partition_status(self, topic: str, partition: int) -> PartitionStatus:
        """Of any partition. Raises UnknownTopic, UnknownPartition."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        """Raises NotAuthenticated, Unavailable."""

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> None:
        """Raises NotAuthorized, NotAuthenticated."""


@dataclass(frozen=True, slots=True)
class PluginQuarantine:
    """A plugin's interceptor is not called, because it failed or took too long."""

    topic: str
    """For which it is not called; empty: for none."""
    reason: str
    retry_s: float
    """Until it is tried again; 0: with the next records."""
    records: str
    """What happens to them meanwhile: `refused`, or `stored` unseen."""


@dataclass(frozen=True, slots=True)
class PluginState:
    """A plugin of one node, and how it is set."""

    name: str
    version: str
    distribution: str
    enabled: bool
    hooks: Sequence[str]
    error: str
    """Why it failed; empty: it did not."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Its section, secrets as `***`."""
    quarantines: Sequence[PluginQuarantine] = ()


@dataclass(frozen=True, slots=True)
class ReloadedPlugin:
    """A plugin whose code a running node has imported again, or could."""

    name: str
    before: str
    """Version."""
    version: str
    """The new one; the same where only the files have changed."""
    hooks: Sequence[str]
    """That the new code implements."""


AnswerPeer = Callable[[bytes], Awaitable[bytes]]


class AdministeredNode(Protocol):
    """This node."""

    node_id: str
    cluster_id: str
    version: str
    host: str
    """Address that listeners bind to where their own section names none."""
    ready: bool
    """It has registered: clients may come."""
    catalog: CatalogAccess
    broker: Broker | None
    """None: the node is a member of the MetaService alone."""
    audit: AuditLog
    configuration: NodeConfiguration

    @property
    def operations(self) -> ClusterOperations:
        """What operators do in the cluster."""

    @property
    def group(self) -> GroupOperations:
        """What they do in the MetaService."""

    def addresses(self) -> Mapping[str, str]:
        """Listener name -> `host:port`."""

    def routes(self) -> Sequence[AnyRoute]:
        """Of the other listeners, which have started."""

    def plugins(self) -> Sequence[PluginState]:
        """All that are installed."""

    async def reload_plugin(self, name: str, *, dry_run: bool = False) -> ReloadedPlugin:
        """Go on with a plugin's code, and its section of the configuration, as they are now.
        Raises UnknownEntry, ConfigError, PluginError: nothing has changed then."""

    def resume_plugin(self, name: str) -> None:
        """Call a plugin's interceptors again, whatever they did: its quarantines end."""

    def metrics(self) -> tuple[bytes, str]:
        """(text in Prometheus' format, content type)."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    async def give_way(self) -> None:
        """Let others have their turn on the event loop."""

    async def ask(self, node_id: str, request: bytes) -> bytes:
        """What the admin API of another broker answers. Raises Unavailable: it has done nothing;
        OutcomeUnknown."""

    def answer_peers(self, answer: AnswerPeer) -> None:
        """Have `answer` called with what other brokers ask this one; only they can."""
