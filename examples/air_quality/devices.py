"""The devices: one paho-mqtt client per sensor, QoS 1, each with a bounded number in flight.

All of them run on the caller's thread, around one `select`: what real devices do with a processor
each is here shared by thirteen, and threads would only wait for each other.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from examples.air_quality.readings import Reading, payload, topic_name

IN_FLIGHT_MAX: Final = 50
"""Publishes that one device has sent and not seen acknowledged."""
_KEEPALIVE_S: Final = 60
_RECONNECT_S: Final = 0.25
_SELECT_MAX_S: Final = 0.1
_SILENCE_MAX_S: Final = 60.0
"""No acknowledgement of any device for so long: the replay is given up."""


class ReplayFailed(Exception):
    """The devices could not hand over their readings."""


class Device:
    """One sensor's client. Publishes its readings in order and remembers what was acknowledged.

    When the connection is lost it connects again, and paho sends again what was not acknowledged,
    with the DUP flag: that is QoS 1, at least once.
    """

    def __init__(self, sensor: str, readings: Sequence[Reading]) -> None:
        self.sensor = sensor
        self.acknowledged: list[Reading] = []
        """Readings for which a PUBACK came, in the order in which they came."""
        self.refusal: str | None = None
        """Why the broker did not take the connection."""
        self._readings = iter(readings)
        self._left = len(readings)
        self.in_flight: dict[int, Reading] = {}
        """Packet id -> reading that was sent and not acknowledged."""
        self._connected = False
        self._connect_at = 0.0
        self._client = client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=f"air-quality-{sensor}", clean_session=False
        )
        client.max_inflight_messages_set(IN_FLIGHT_MAX)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_socket_register_write = _leave_writing_to_the_loop

    @property
    def done(self) -> bool:
        return not self._left and not self.in_flight

    def keep_connected(self, address: str, now_s: float) -> None:
        if self._client.socket() is not None or now_s < self._connect_at:
            return
        self._connect_at = now_s + _RECONNECT_S
        host, _, port = address.rpartition(":")
        try:
            self._client.connect(host, int(port), _KEEPALIVE_S)
        except OSError:  # nobody listens there now; tried again after a moment
            return

    def work(self) -> None:
        """Publish as much as may be in flight, and write it out."""
        if self._connected:
            while self._left and len(self.in_flight) < IN_FLIGHT_MAX:
                reading = next(self._readings)
                self._left -= 1
                sent = self._client.publish(topic_name(self.sensor), payload(reading), qos=1)
                self.in_flight[sent.mid] = reading
        if self._client.want_write():
            self._client.loop_write()

    def read(self) -> None:
        self._client.loop_read()

    def keep_alive(self) -> None:
        self._client.loop_misc()

    def socket(self) -> Any:
        return self._client.socket()

    def wants_write(self) -> bool:
        return self._client.want_write()

    def disconnect(self) -> None:
        self._client.disconnect()
        while (
            self._client.want_write()
            and self._client.loop_write() == MQTTErrorCode.MQTT_ERR_SUCCESS
        ):
            pass

    def _on_connect(self, _c: object, _u: object, _f: object, reason: Any, _p: object) -> None:
        if reason.is_failure:
            self.refusal = str(reason)
        self._connected = not reason.is_failure

    def _on_disconnect(self, *_: object) -> None:
        self._connected = False

    def _on_publish(self, _c: object, _u: object, packet_id: int, _r: object, _p: object) -> None:
        self.acknowledged.append(self.in_flight.pop(packet_id))


def _leave_writing_to_the_loop(*_: object) -> None:
    """With this callback set, paho queues packets and leaves writing to `Device.work`."""


class Fleet:
    """All devices together.

    `address` tells where the broker listens now (`host:port`), asked at every connect.
    `on_progress` gets the number of readings acknowledged so far, some times a second.
    """

    def __init__(
        self,
        readings: Mapping[str, Sequence[Reading]],
        address: Callable[[], str],
        on_progress: Callable[[int], None],
    ) -> None:
        self._devices = [Device(sensor, each) for sensor, each in readings.items()]
        self._address = address
        self._on_progress = on_progress

    def acknowledged(self) -> list[Reading]:
        """Readings for which a PUBACK has come, of all devices."""
        return [reading for device in self._devices for reading in device.acknowledged]

    def in_flight(self) -> list[Reading]:
        """Readings that were sent and for which no PUBACK has come."""
        return [reading for device in self._devices for reading in list(device.in_flight.values())]

    def replay(self) -> None:
        """Publish everything; returns when all is acknowledged. ReplayFailed if it can't be."""
        acknowledged, heard_at = 0, time.monotonic()
        try:
            while not all(device.done for device in self._devices):
                self._turn()
                now, before = time.monotonic(), acknowledged
                acknowledged = sum(len(device.acknowledged) for device in self._devices)
                if acknowledged != before:
                    heard_at = now
                    self._on_progress(acknowledged)
                elif now - heard_at > _SILENCE_MAX_S:
                    raise ReplayFailed(f"no acknowledgement for {_SILENCE_MAX_S:.0f} s")
        finally:
            for device in self._devices:
                device.disconnect()

    def _turn(self) -> None:
        """Everybody writes what it may, then whoever was answered reads."""
        now = time.monotonic()
        for device in self._devices:
            if device.refusal is not None:
                raise ReplayFailed(f"the broker refused device {device.sensor}: {device.refusal}")
            device.keep_connected(self._address(), now)
            device.work()
            device.keep_alive()
        sockets = {device.socket(): device for device in self._devices if device.socket()}
        writers = [socket for socket, device in sockets.items() if device.wants_write()]
        readable, _, _ = select.select(list(sockets), writers, [], _SELECT_MAX_S)
        for each in readable:
            sockets[each].read()
