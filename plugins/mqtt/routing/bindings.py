"""Bindings: which topic a publish is stored in, and under which key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakemq.broker_core.api.topic_filters import matches


@dataclass(frozen=True, slots=True)
class Binding:
    """Publishes to topic names that `topic_filter` matches are records of `topic`."""

    topic_filter: str
    topic: str
    key_is_client_id: bool = False
    """The record's key is the publisher's client id; else the MQTT topic name."""
    stores_qos_0: bool = False
    """QoS 0 is stored too; else it passes through memory alone."""

    def takes(self, qos: int) -> bool:
        """Whether publishes of a QoS are stored."""
        return qos > 0 or self.stores_qos_0


def binding_of(bindings: Sequence[Binding], name: str) -> Binding | None:
    """The first binding whose filter matches; None: the publish passes through memory alone."""
    for binding in bindings:
        if matches(binding.topic_filter, name):
            return binding
    return None
