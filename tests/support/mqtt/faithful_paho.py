"""paho's client without a flaw that looks like a broken broker when that is killed."""

from __future__ import annotations

import paho.mqtt.client as paho
from paho.mqtt.enums import MessageState


class Paho(paho.Client):
    """When a first try to reconnect fails, the second one forgets that a QoS 2 publish was released
    already and publishes it anew under its old packet identifier, which is free by then: to any
    broker that is another message (seen in paho-mqtt 2.1). This one does not forget."""

    def _messages_reconnect_reset_out(self) -> None:
        with self._out_message_mutex:
            for message in self._out_messages.values():
                if message.state is MessageState.MQTT_MS_RESEND_PUBREL:
                    message.state = MessageState.MQTT_MS_WAIT_FOR_PUBCOMP
            super()._messages_reconnect_reset_out()
