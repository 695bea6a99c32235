"""Wills: publishes that a client left behind [MQTT-3.1.2-8]."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import AccessContext, Operation, Principal
from lakemq.plugins.mqtt.routing.delayed import (
    PREFIX,
    DelayHub,
    Outgoing,
    delay,
    split_delayed,
)
from lakemq.plugins.mqtt.state.questions import (
    AuthorizationPending,
    Continuation,
    ExclusiveClaim,
    Question,
)
from lakemq.plugins.mqtt.wire.packets import Publish, Will
from lakemq.plugins.mqtt.wire.reasons import MqttError


class WillCounters(Protocol):
    """The counters that wills add to."""

    publishes_refused: int
    wills_published: int

    def failed(self, error: LakeMQError) -> None:
        """A will was not stored."""


class WillOutbox(Outgoing, Protocol):
    """The outbox, as wills need it."""

    questions: list[tuple[Question | ExclusiveClaim, Continuation]]


class WillHub(DelayHub, Protocol):
    """The hub, as wills need it."""

    @property
    def counters(self) -> WillCounters:
        """Where wills that were not stored are counted."""

    @property
    def outbox(self) -> WillOutbox:
        """Where questions and records to append are put."""

    def topic_name(self, text: str) -> str:
        """The topic name that a publish to `text` goes to."""

    def is_for_clients(self, name: str) -> bool:
        """Whether clients may publish under a name."""

    def allowed(
        self, principal: Principal, operation: Operation, name: str, context: AccessContext
    ) -> bool:
        """Whether the principal may. Raises AuthorizationPending."""

    def publish_for(
        self, packet: Publish, client_id: str, principal: Principal, now_ms: int
    ) -> None:
        """Publish for a client that is not here."""


def publish_will(
    hub: WillHub, will: Will, client_id: str, principal: Principal, now_ms: int
) -> None:
    """Publish it, if its client may."""
    delay_s, name = None, will.topic
    packet = Publish(name, will.payload, will.qos, will.retain, properties=will.properties)
    try:
        if name.startswith(PREFIX):
            delay_s, packet.topic = split_delayed(name)
        packet.topic = hub.topic_name(packet.topic)
        context = AccessContext("mqtt", client_id, qos=will.qos, retain=will.retain)
        allowed = hub.is_for_clients(packet.topic) and hub.allowed(
            principal, Operation.WRITE, packet.topic, context
        )
        if allowed and delay_s is not None:
            delay(hub, packet, delay_s, client_id, principal, now_ms)
    except AuthorizationPending as unanswered:
        again = partial(publish_will, hub, will, client_id, principal)
        hub.outbox.questions.append((unanswered.question, again))
        return
    except (LakeMQError, MqttError):
        allowed = False
    if not allowed:
        hub.counters.publishes_refused += 1
        return
    hub.counters.wills_published += 1
    if delay_s is None:
        hub.publish_for(packet, client_id, principal, now_ms)
