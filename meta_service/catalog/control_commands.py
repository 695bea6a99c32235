"""Commands of the controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lakemq.meta_service.api.errors import InvalidArgument
from lakemq.meta_service.catalog.command_codec import (
    Command,
    check_hex,
    check_integer,
    check_list,
    check_name,
    command,
)

ACTIVE: Final = "active"
FENCED: Final = "fenced"
DRAINING: Final = "draining"
NODE_STATES: Final = (FENCED, ACTIVE, DRAINING)
TOPICS_MAX: Final = 1000
"""Topics in one command, so that none takes long."""
REPLICAS_MAX: Final = 32


@command("sessions-")
@dataclass(frozen=True, slots=True)
class ExpireSessions(Command):
    """Forget clients that were idle for `idle_ms` of the catalog's uptime."""

    idle_ms: int
    count: int
    """Upper bound of the clients forgotten at once, so that the command does not take long."""

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_integer(self.idle_ms, "idle_ms", 60_000, 2**53)
        check_integer(self.count, "count", 1, 1000)


@command("node~")
@dataclass(frozen=True, slots=True)
class SetNodeState(Command):
    """Fence, activate or drain a registration; another incarnation is left alone."""

    node_id: str
    broker_epoch: int
    state: str

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_name(self.node_id, "node_id")
        check_integer(self.broker_epoch, "broker_epoch", 0, 2**62)
        if self.state not in NODE_STATES:
            raise InvalidArgument(f"state: must be one of {', '.join(NODE_STATES)}")


@command("node-")
@dataclass(frozen=True, slots=True)
class RemoveNode(Command):
    """Forget a node that holds no replicas any more."""

    node_id: str

    def check(self) -> None:
        """Raises InvalidArgument unless it is a node name."""
        check_name(self.node_id, "node_id")


@command("node--")
@dataclass(frozen=True, slots=True)
class RetireNode(Command):
    """Forget a node that was draining and holds no replicas any more."""

    level: ClassVar[int] = 2

    node_id: str
    broker_epoch: int

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_name(self.node_id, "node_id")
        check_integer(self.broker_epoch, "broker_epoch", 0, 2**62)


@command("elect")
@dataclass(frozen=True, slots=True)
class ElectLeaders(Command):
    """Bring partitions of topics in line with the states of nodes. Does nothing where they are."""

    topics: tuple[str, ...]
    preferred: bool
    """Also move leadership back to the first replica where it can lead."""

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_list(self.topics, "topics")
        if len(self.topics) > TOPICS_MAX:
            raise InvalidArgument(f"topics: at most {TOPICS_MAX} at once")
        for name in self.topics:
            check_name(name, "topics")
        if not isinstance(self.preferred, bool):
            raise InvalidArgument("preferred: must be true or false")


@command("in-sync")
@dataclass(frozen=True, slots=True)
class ChangeInSync(Command):
    """A leader changes who is in sync. Compare-and-set on both epochs, as in Kafka's KIP-497."""

    topic: str
    topic_id: str
    partition: int
    leader: str
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[str, ...]

    def check(self) -> None:
        """Raises InvalidArgument that names the field; whether they are replicas is checked when it
        is applied."""
        check_name(self.topic, "topic")
        check_hex(self.topic_id, "topic_id")
        check_integer(self.partition, "partition", 0, 2**31)
        check_name(self.leader, "leader")
        check_integer(self.leader_epoch, "leader_epoch", 0, 2**62)
        check_integer(self.partition_epoch, "partition_epoch", 0, 2**62)
        check_list(self.in_sync, "in_sync")
        if not 0 < len(self.in_sync) <= REPLICAS_MAX:
            raise InvalidArgument(f"in_sync: must name 1 to {REPLICAS_MAX} replicas")
        for name in self.in_sync:
            check_name(name, "in_sync")
