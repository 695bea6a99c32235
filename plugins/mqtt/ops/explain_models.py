"""What the admin API takes and answers about the way of a message through one node's MQTT side."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lakemq.broker_core.api.administration.routes import Answer, Flag, OwnQuery, Whole

DELIVERIES_MAX = 100
DECISIONS_MAX = 200
DeliveryState = Literal[
    "sent", "in_flight", "waiting", "dropped", "subscribed_later", "ended", "not_reached"
]


class ExplainQuery(OwnQuery):
    """Which message."""

    client_id: str = Field(default="", max_length=1024)
    """Of the publisher."""
    topic_name: str = Field(default="", max_length=65_535)
    topic: str = Field(default="", max_length=249)
    """Topic of its record; empty: it has none, or it is not known which."""
    partition: Whole = Field(default=0, ge=0, le=10_000)
    offset: Whole = Field(default=0, ge=0, le=2**62)
    qos: Whole = Field(default=1, ge=0, le=2)
    retain: Flag = False
    at_ms: Whole | None = Field(default=None, ge=0, le=2**53)
    """When it was published (ms since 1970, UTC)."""
    since_ms: Whole = Field(default=0, ge=0, le=2**53)
    """Only decisions that are not older."""
    until_ms: Whole | None = Field(default=None, ge=0, le=2**53)
    """Only decisions that are not younger."""


class BindingAnswer(Answer):
    """Where publishes to a topic name are stored."""

    filter: str
    topic: str
    key: Literal["client_id", "topic_name"]
    stores_qos_0: bool


class PublisherAnswer(Answer):
    """The session of the publisher."""

    client_id: str
    principal: str
    connected: bool
    connected_ms: int | None
    peer_host: str | None
    may_publish: bool
    """As the rules are now."""
    reason: str
    """The rule."""


class DecisionAnswer(Answer):
    """A refusal, a delivery that was dropped, or a subscription that changed."""

    at_ms: int
    kind: str
    client_id: str
    topic: str
    """Topic name or filter, its first 512 characters; empty: unknown."""
    origin: str | None
    """The publisher, of a delivery."""
    why: str
    count: int
    """Publishes in a row that it was about."""
    stored: bool
    """The message has a record."""


class DeliveryAnswer(Answer):
    """What became of the message at one subscriber."""

    client_id: str
    filter: str
    group: str | None
    """Name of the shared subscription."""
    state: DeliveryState
    at_ms: int | None
    """Of a drop; since when it is in flight or waits; when the subscription began or ended."""
    reason: str
    """Why it was dropped, or the proof that it was not."""


class MqttExplained(Answer):
    """What one node's MQTT side knows of a message."""

    node: str
    binding: BindingAnswer | None
    """Null: its topic name is bound to no topic."""
    publisher: PublisherAnswer | None
    """Null: no session of that client id is here."""
    reached: bool | None
    """Whether the record has come by this node's subscriptions; null: it is not in this node's way,
    or there is no record."""
    subscribers: int
    """That match the topic name now."""
    deliveries: list[DeliveryAnswer]
    """At most 100."""
    decisions: list[DecisionAnswer]
    """About its publisher or topic name, the oldest first, at most 200."""
    known_since_ms: int | None
    """Since when no decision was forgotten; null: none is held (`decisions_max`)."""
