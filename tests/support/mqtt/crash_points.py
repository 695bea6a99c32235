"""Runs `lakemq` so that it kills itself at one named step of a QoS 2 publish.

    LAKEMQ_TEST_CRASH_POINT=pubrec_sent python -m tests.support.mqtt.crash_points start ...

A point is a call of the broker's own code; the process gets SIGKILL before it or behind it, so
nothing is flushed that was not. Empty: no point.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from lakemq.plugins.mqtt.server.tcp import SocketLink
from lakemq.plugins.mqtt.session import protocol
from lakemq.plugins.mqtt.state.delivery import Outbound
from lakemq.plugins.mqtt.state.ledger import Ledger
from lakemq.plugins.mqtt.state.states import State
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.packets import (
    V311,
    Acknowledgement,
    AcknowledgementRun,
    PacketType,
    Publish,
    StoredRun,
)

VARIABLE: Final = "LAKEMQ_TEST_CRASH_POINT"
_flags: set[str] = set()
_HANDLERS = protocol._HANDLERS[State.CONNECTED]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_qos_2(*arguments: Any) -> bool:
    return bool(arguments[1].qos == 2)


def on_packet(kinds: Iterable[type], when: Callable[..., bool], then: Callable[[], None]) -> None:
    """Do `then` before a packet from a client is handled, or a run of them."""
    for kind in kinds:
        _HANDLERS[kind] = _hooked(_HANDLERS[kind], when, then)


def _hooked(
    handler: Callable[..., None], when: Callable[..., bool], then: Callable[[], None]
) -> Callable[..., None]:
    def handle(*arguments: Any) -> None:
        if when(*arguments):
            then()
        handler(*arguments)

    return handle


def before(owner: type, name: str, when: Callable[..., bool], then: Callable[[], None]) -> None:
    call = getattr(owner, name)

    def called(*arguments: Any, **named: Any) -> Any:
        if when(*arguments):
            then()
        return call(*arguments, **named)

    setattr(owner, name, called)


def behind(owner: type, name: str, when: Callable[..., bool]) -> None:
    call = getattr(owner, name)

    def called(*arguments: Any, **named: Any) -> Any:
        result = call(*arguments, **named)
        if when(*arguments):
            die()
        return result

    setattr(owner, name, called)


def sent(kind: PacketType) -> None:
    """Die when such a packet has been given to the socket."""

    def written(link: SocketLink, data: bytes) -> bool:
        packets = Decoder(1 << 28, version=V311).feed(data)
        if kind is PacketType.PUBLISH:
            return any(isinstance(one, Publish) and one.qos == 2 for one in packets)
        return any(isinstance(one, Acknowledgement) and one.type is kind for one in packets)

    behind(SocketLink, "send", written)


def flag(name: str) -> Callable[[], None]:
    return lambda: _flags.add(name)


def once_kept(cause: str) -> None:
    """Die when a session is on disk that was to be kept for `cause`, before anybody hears."""
    before(Ledger, "done", lambda *_: cause in _flags, die)


def on_acknowledgement(kind: PacketType, then: Callable[[], None]) -> None:
    """Do `then` before such packets are handled."""
    on_packet((Acknowledgement, AcknowledgementRun), lambda *sent: sent[1].type is kind, then)


def _publish_stored() -> None:
    before(protocol.ServerProtocol, "on_result", _settled_qos_2, die)
    before(protocol.ServerProtocol, "on_received", lambda *_: True, die)


def _settled_qos_2(*arguments: Any) -> bool:
    return bool(arguments[2] == 2)


def _release_kept() -> None:
    on_acknowledgement(PacketType.PUBREL, flag("release"))
    once_kept("release")


def _delivery_kept() -> None:
    before(Outbound, "_send_when_kept", lambda *_: True, flag("delivery"))
    once_kept("delivery")


def _receipt_kept() -> None:
    on_acknowledgement(PacketType.PUBREC, flag("receipt"))
    once_kept("receipt")


POINTS: Final[dict[str, Callable[[], None]]] = {
    # from a client
    "publish_received": lambda: on_packet((Publish, StoredRun), is_qos_2, die),
    "publish_stored": _publish_stored,
    "pubrec_sent": lambda: sent(PacketType.PUBREC),
    "pubrel_received": lambda: on_acknowledgement(PacketType.PUBREL, die),
    "release_kept": _release_kept,
    "pubcomp_sent": lambda: sent(PacketType.PUBCOMP),
    # to a client
    "delivery_waits": lambda: before(Outbound, "_send_when_kept", lambda *_: True, die),
    "delivery_kept": _delivery_kept,
    "publish_sent": lambda: sent(PacketType.PUBLISH),
    "pubrec_received": lambda: on_acknowledgement(PacketType.PUBREC, die),
    "receipt_kept": _receipt_kept,
    "pubrel_sent": lambda: sent(PacketType.PUBREL),
    "pubcomp_received": lambda: on_acknowledgement(PacketType.PUBCOMP, die),
}


def main() -> None:
    point = os.environ.get(VARIABLE, "")
    if point:
        POINTS[point]()
    sys.argv = ["lakemq", *sys.argv[1:]]
    runpy.run_module("lakemq", run_name="__main__")


if __name__ == "__main__":
    main()
