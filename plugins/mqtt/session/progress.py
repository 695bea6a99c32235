"""What a connection remembers between packets: authentication, routes, a SUBSCRIBE under way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from lakemq.broker_core.api.types import Credentials
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.state.records import PlainHeaders, plain_headers
from lakemq.plugins.mqtt.state.sessions import Subscription
from lakemq.plugins.mqtt.wire.messages import Message
from lakemq.plugins.mqtt.wire.reasons import Reason


@dataclass(slots=True, eq=False)
class Dialogue:
    """One run of an exchange with a client."""

    said: bytes | None = None
    """What the client said last, while an answer to it is awaited; None: the client's turn."""
    again: bool = False
    """Whether the client is connected and re-authenticates."""
    steps: int = 0


@dataclass(slots=True)
class Enhanced:
    """What a connection remembers whose CONNECT named an authentication method."""

    method: str
    credentials: Credentials
    dialogue: Dialogue | None = None
    """The exchange that runs."""
    last_word: bytes = b""
    """Authentication data for CONNACK."""


ROUTES_MAX: Final = 4096
"""Topic names of one client whose routes are remembered."""


@dataclass(slots=True)
class Route:
    """What becomes of one client's publishes to one topic name."""

    topic: str
    allowed: list[bool | None]
    """Whether it may, by `qos * 2 + retain`; None: not asked yet."""
    binding: Binding | None
    key: bytes
    """Key of its records."""
    client_id: str
    stores: str | None = None
    """Topic that plain QoS 1 publishes to this very name are stored in; None: they are not, or need
    a closer look."""
    delay_s: int | None = None
    """How long its publishes wait; None: they do not."""
    refusal: Reason = Reason.NOT_AUTHORIZED
    """Reason code for a publish that is not allowed."""
    certificate: str | None = None
    """Where a Sparkplug birth is retained, too; None: it is none, or nothing heeds that."""
    _headers: PlainHeaders | None = None

    @property
    def headers(self) -> PlainHeaders:
        """Record headers by QoS, for publishes without properties that are not retained."""
        if self._headers is None:
            by_client = self.binding is not None and self.binding.key_is_client_id
            self._headers = plain_headers(self.topic, self.client_id, key_is_client_id=by_client)
        return self._headers


@dataclass(slots=True)
class Progress:
    """How far a SUBSCRIBE is."""

    codes: list[int] = field(default_factory=list)
    """For SUBACK, of the first filters."""
    fresh: dict[str, Subscription] = field(default_factory=dict)
    """Those of them that retained messages are due for, by their filter."""


class Owed:
    """Retained messages that are due for a subscription."""

    __slots__ = ("messages", "revision", "subscription")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.revision = 0
        """Of all that is retained, when `messages` was made."""
        self.messages: deque[Message] | None = None
        """Those not sent yet; None: they have not been looked for."""
