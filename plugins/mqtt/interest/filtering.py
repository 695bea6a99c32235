"""Which batches of partitions led here another node wants, by the interest that it has told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lakemq.broker_core.api.cluster.channels import Peer
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.types import CommittedBatch
from lakemq.plugins.mqtt.interest.others import OthersInterest
from lakemq.plugins.mqtt.state.records import RecordReader

FILTER: Final = "mqtt.interest"
_BATCHES_MAX: Final = 256
_NAMES_MAX: Final = 4096
"""Names of one batch that are remembered; one with more is wanted."""

Names = frozenset[str] | None
"""Topic names of a batch; None: it is wanted whatever they are."""


class InterestFilter:
    """Remembers the names of the last batches: several nodes read the same ones."""

    def __init__(
        self,
        others: OthersInterest,
        reader: RecordReader,
        is_bound: Callable[[str], bool],
    ) -> None:
        """`is_bound(topic)`: whether MQTT publishes are stored there."""
        self._others = others
        self._reader = reader
        self._is_bound = is_bound
        self._names: dict[tuple[str, int, int, int], Names] = {}

    def wants(self, peer: Peer, number: int, batch: CommittedBatch) -> bool:
        """Implements `BatchFilter`."""
        if not self._is_bound(batch.topic):
            return True
        # The size tells batches apart that came behind another in a topic of the same name.
        key = (batch.topic, batch.partition, batch.base_offset, len(batch.data))
        if key not in self._names:
            if len(self._names) >= _BATCHES_MAX:
                del self._names[next(iter(self._names))]
            self._names[key] = self._names_of(batch)
        names = self._names[key]
        return names is None or self._others.wants(peer, number, names)

    def _names_of(self, batch: CommittedBatch) -> Names:
        try:
            found = self._reader.names(RecordBatch(batch.data))
        except LakeMQError:
            return None  # who reads it reports it
        # None: the node may have to retain a record, or to note that it is stored.
        if found is None or len(found) > _NAMES_MAX:
            return None
        found.discard("")
        return frozenset(found)
