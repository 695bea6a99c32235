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
_SELECT_S_MAX: Final = 0.1
_SILENCE_S_MAX: Final = 60.0
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
        self._in_flight: dict[int, Reading] = {}
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
        return not self._left and not self._in_flight

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
            while self._left and len(self._in_flight) < IN_FLIGHT_MAX:
                reading = next(self._readings)
                self._left -= 1
                sent = self._client.publish(topic_name(self.sensor), payload(reading), qos=1)
                self._in_flight[sent.mid] = reading
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
        self.acknowledged.append(self._in_flight.pop(packet_id))


def _leave_writing_to_the_loop(*_: object) -> None:
    """With this callback set, paho queues packets and leaves writing to `Device.work`."""


def replay(
    readings: Mapping[str, Sequence[Reading]],
    address: Callable[[], str],
    on_progress: Callable[[int], None],
) -> dict[str, list[Reading]]:
    """Publish everything; returns, by sensor, what was acknowledged. ReplayFailed if it can't.

    `address` tells where the broker listens now (`host:port`), asked at every connect.
    `on_progress` gets the number of readings acknowledged so far, some times a second.
    """
    devices = [Device(sensor, each) for sensor, each in readings.items()]
    acknowledged, heard_at = 0, time.monotonic()
    try:
        while not all(device.done for device in devices):
            _turn(devices, address)
            now, before = time.monotonic(), acknowledged
            acknowledged = sum(len(device.acknowledged) for device in devices)
            if acknowledged != before:
                heard_at = now
                on_progress(acknowledged)
            elif now - heard_at > _SILENCE_S_MAX:
                raise ReplayFailed(f"no acknowledgement for {_SILENCE_S_MAX:.0f} s: {address()}")
    finally:
        for device in devices:
            device.disconnect()
    return {device.sensor: device.acknowledged for device in devices}


def _turn(devices: Sequence[Device], address: Callable[[], str]) -> None:
    """Everybody writes what it may, then whoever was answered reads."""
    now = time.monotonic()
    for device in devices:
        if device.refusal is not None:
            raise ReplayFailed(f"the broker refused device {device.sensor}: {device.refusal}")
        device.keep_connected(address(), now)
        device.work()
        device.keep_alive()
    readers = [device for device in devices if device.socket() is not None]
    writers = [device.socket() for device in readers if device.wants_write()]
    sockets = {device.socket(): device for device in readers}
    readable, _, _ = select.select(list(sockets), writers, [], _SELECT_S_MAX)
    for each in readable:
        sockets[each].read()
