"""Topic aliases from the server to one client.

Source: MQTT 5.0 section 3.3.2.3.4.
"""

from __future__ import annotations

from lakemq.plugins.mqtt.wire.messages import Message, Wire
from lakemq.plugins.mqtt.wire.packets import V5


class SentAliases:
    """Which topic names have an alias on one connection: the first `most` names that are sent."""

    __slots__ = ("_aliases", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._aliases: dict[str, int] = {}

    def wire(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        now_ms: int,
        packet_max_bytes: int,
    ) -> Wire:
        """The packet under an alias, or plain when all are in use. An alias counts as set only when
        its packet is small enough to be sent."""
        topic = message.topic
        alias = self._aliases.get(topic)
        if alias is not None:
            return message.wire_with_alias(alias, "", qos, retain, identifiers, now_ms)
        if len(self._aliases) < self._most:
            alias = len(self._aliases) + 1
            head, rest = message.wire_with_alias(alias, topic, qos, retain, identifiers, now_ms)
            # 2: the packet identifier, counted at QoS 0 as well.
            if len(head) + len(rest) + 2 <= packet_max_bytes:
                self._aliases[topic] = alias
                return head, rest
        return message.wire(V5, qos, retain, identifiers, now_ms)
