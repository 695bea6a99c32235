"""What the admin API takes and answers about where a message is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lakemq.broker_core.api.administration.routes import Answer, Query, Whole

StationName = Literal["published", "authorized", "bound", "stored", "durable", "delivered", "group"]
StationState = Literal["ok", "waiting", "failed", "unknown"]


class Station(Answer):
    """One station of a message's way."""

    station: StationName
    state: StationState
    """`failed`: the message ends here, or this receiver does not get it."""
    at_ms: int | None = None
    """When (ms since 1970, UTC); null: not known."""
    node: str = ""
    """Node that tells it; empty: the cluster's state."""
    who: str = ""
    """Client id or group."""
    what: str
    """A sentence."""
    proof: str = ""
    """From what it is known."""


class Explained(Answer):
    """The way of one message as far as it is known."""

    topic: str = ""
    """Topic of its record; empty: it is not stored."""
    partition: int | None = None
    offset: int | None = None
    client_id: str = ""
    """Of the publisher, where it came by MQTT."""
    topic_name: str = ""
    stations: list[Station]


class PublishesQuery(Query):
    """Which publishes."""

    client: str = Field(default="", max_length=1024)
    """Client id of the publisher."""
    topic_name: str = Field(min_length=1, max_length=65_535)
    since_ms: Whole = Field(default=0, ge=0, le=2**53)
    """The oldest (ms since 1970, UTC)."""
    until_ms: Whole | None = Field(default=None, ge=0, le=2**53)
    limit: Whole = Field(default=5, ge=1, le=20)
    """Most of them, the oldest first."""


class ExplainedPublishes(Answer):
    """Publishes that were found, and how far was looked."""

    found: list[Explained]
    """Stored ones, then refused and dropped ones that were not stored."""
    looked_at: int
    """Records."""
    complete: bool
    """False: there are more; go on from `next_since_ms`."""
    next_since_ms: int | None
    notes: list[str]
    """What could not be looked at, and why."""
