"""What the nodes of a cluster are to its partitions, as one command sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from lakemq.meta_service.api.types import (
    NodeRegistration,
    PartitionDescription,
    TopicDescription,
)
from lakemq.meta_service.catalog.control_commands import ACTIVE, DRAINING, FENCED
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.nodes import all_nodes
from lakemq.meta_service.catalog.pages.rows import Page, topic_id_of
from lakemq.meta_service.catalog.partitions import is_unclean, settle
from lakemq.meta_service.catalog.tables import KEYS, LOST_PREFIX, decode_row, pack, unpack

Replicas = frozenset[tuple[bytes, int]]
"""(topic id, partition) of each."""


class Lost(NamedTuple):
    """What a node held on a disk, or in logs, that it does not have any more."""

    everything: bool
    replicas: Replicas

    def holds(self, topic_id: bytes, partition: int) -> bool:
        """Whether the node's copy of that partition is lost."""
        return self.everything or (topic_id, partition) in self.replicas


NOTHING_LOST: Final = Lost(False, frozenset())


def lost_key(node_id: str) -> bytes:
    """Key in the KV space of what a node has lost."""
    return LOST_PREFIX + node_id.encode()


def encode_lost(lost: Lost) -> bytes:
    """The value of a lost row; replicas in order, so that members store the same bytes."""
    return pack([lost.everything, sorted(lost.replicas)])


def decode_lost(value: bytes) -> Lost:
    """What `encode_lost` made."""
    fields: Any = unpack(value)
    everything, replicas = fields
    return Lost(everything, frozenset(replicas))


class Cluster:
    """Nodes and what they have lost; settles partitions by it. Pure."""

    def __init__(
        self,
        nodes: Iterable[NodeRegistration],
        lost: Mapping[str, Lost],
        avoid: Collection[str] = (),
    ) -> None:
        """`avoid`: nodes that are elected only where no other can lead."""
        self._avoid = avoid
        self.nodes = {node.node_id: node for node in nodes}
        self.lost = lost
        self._states = {name: node.state for name, node in self.nodes.items()}
        self._silent = {
            node.node_id
            for node in self.nodes.values()
            if node.state == FENCED and node.admitted and not node.leaving
        }

    def may_join(self, node_id: str, broker_epoch: int) -> bool:
        """Whether that registration may become a member of in-sync sets (KIP-841, KIP-903)."""
        node = self.nodes.get(node_id)
        return (
            node is not None
            and node.state in (ACTIVE, DRAINING)
            and node.broker_epoch == broker_epoch
        )

    def settle(
        self,
        topic_id: str,
        partition: PartitionDescription,
        *,
        unclean: bool,
        preferred: bool = False,
        resigned: str = "",
    ) -> PartitionDescription:
        """As `partitions.settle`, by what is known of the nodes."""
        return settle(
            partition,
            self._states,
            preferred=preferred,
            unclean=unclean,
            resigned=resigned,
            lost=self._lost(topic_id, partition) if self.lost else (),
            silent=self._silent,
            avoid=self._avoid,
        )

    def _lost(self, topic_id: str, partition: PartitionDescription) -> list[str]:
        number = (bytes.fromhex(topic_id), partition.partition)
        return [node for node, lost in self.lost.items() if lost.holds(*number)]

    def is_amiss(self, page: bytes, found: Page, *, unclean: bool, preferred: bool = False) -> bool:
        """Whether `settle_page` would change anything."""
        topic_id = topic_id_of(page)
        return any(
            self.settle(topic_id, old, unclean=unclean, preferred=preferred) is not old
            for old in found.partitions
        )

    def settle_page(
        self, page: bytes, found: Page, *, unclean: bool, preferred: bool = False
    ) -> list[PartitionDescription]:
        """The partitions of a page that are not as they should be, as they should be."""
        topic_id = topic_id_of(page)
        settled = (
            (old, self.settle(topic_id, old, unclean=unclean, preferred=preferred))
            for old in found.partitions
        )
        return [new for old, new in settled if new is not old]

    def settle_topic(self, topic: TopicDescription) -> TopicDescription:
        """All partitions of a topic."""
        unclean = is_unclean(topic.config)
        partitions = tuple(
            self.settle(topic.topic_id, each, unclean=unclean) for each in topic.partitions
        )
        return topic if partitions == topic.partitions else replace(topic, partitions=partitions)

    def settle_new(
        self, partitions: Sequence[PartitionDescription]
    ) -> tuple[PartitionDescription, ...]:
        """Partitions that begin, in epoch 0: all replicas have everything, as there is nothing."""
        settled = (settle(each, self._states) for each in partitions)
        return tuple(replace(each, leader_epoch=0, partition_epoch=0) for each in settled)


def cluster_of(draft: Draft, avoid: Collection[str] = ()) -> Cluster:
    """The nodes as the command sees them; `avoid` as in `Cluster`."""
    prefix = KEYS + LOST_PREFIX
    lost = {
        key[len(prefix) :].decode(): decode_lost(decode_row(data).value)
        for key, data in draft.scan(prefix)
    }
    return Cluster(all_nodes(draft), lost, avoid)
