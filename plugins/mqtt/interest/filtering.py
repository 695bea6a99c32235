"""Which batches of partitions led here another node wants, by the interest that it has told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lakemq.broker_core.api.cluster.channels import Peer
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import CommittedBatch
from lakemq.plugins.mqtt.interest.others import OthersInterest
from lakemq.plugins.mqtt.state.records import RecordReader

FILTER: Final = "mqtt.interest"


class InterestFilter:
    """Implements `BatchFilter` for all other nodes."""

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

    def wants(self, peer: Peer, number: int, batch: CommittedBatch) -> bool:
        """Implements `BatchFilter`."""
        if not self._is_bound(batch.topic):
            return True
        try:
            names = self._reader.names(batch)
        except LakeMQError:
            return True  # who reads it reports it
        # None: the node may have to retain a record, or to note that it is stored.
        return names is None or self._others.wants(peer, number, names - {""})
