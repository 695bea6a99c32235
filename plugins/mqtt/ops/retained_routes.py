"""Retained messages over the admin API. Each node has them by what its journal and sessions brought
it, so they are asked for node by node."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Literal

from pydantic import Field

from lakemq.broker_core.api.administration.routes import (
    AdminListing,
    AdminRequest,
    AdminRoute,
    Answer,
    AnyRoute,
    Need,
    OwnChangeQuery,
    OwnPageQuery,
    OwnQuery,
    expect,
)
from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError
from lakemq.broker_core.api.topic_filters import is_filter
from lakemq.broker_core.api.types import Operation
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.wire.messages import Message

LOOKED_MAX: Final = 5_000
"""Messages that a filter may match; a list of more is refused, with the advice to narrow it."""


class UnknownRetained(LakeMQError):
    """Nothing is retained under that topic name."""

    code = "UNKNOWN_RETAINED"


class RetainedQuery(OwnPageQuery):
    """Parameters of the list of retained messages."""

    filter: str = Field(default="#", min_length=1, max_length=1024)
    """Topic filter; `#` leaves out names that begin with `$`."""


class RetainedRow(Answer):
    """A retained message, without its payload."""

    node: str
    topic_name: str
    qos: int
    size_bytes: int
    """Of the payload."""
    arrived_ms: int
    expires_ms: int | None
    client_id: str | None
    """Who published it, where that is known."""


class RetainedAnswer(RetainedRow):
    """A retained message."""

    payload: str
    encoding: Literal["text", "base64"]


class RetainedDeleted(Answer):
    """A retained message that was deleted from one node, or would be."""

    node: str
    topic_name: str


class RetainedRoutes:
    """Below `/api/v1/mqtt/retained`."""

    def __init__(self, hub: Callable[[], Hub], node_id: Callable[[], str],
                 now_ms: Callable[[], int], after: Callable[[], None]) -> None:  # fmt: skip
        """As `MqttEngine` has them; asked for when they are needed."""
        self._hub = hub
        self._node_id = node_id
        self._now_ms = now_ms
        self._after = after

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        one = "mqtt/retained/{topic_name}"
        return [
            AdminListing(
                "mqtt/retained", RetainedRow, self._all, self._rows, lambda each: each.topic,
                {
                    "topic_name": lambda each: each.topic,
                    "size_bytes": lambda each: len(each.payload),
                    "arrived_ms": lambda each: each.arrived_ms,
                },
                query=RetainedQuery, own=True, summary="List retained MQTT messages.",
            ),
            AdminRoute("GET", one, self.get, RetainedAnswer, OwnQuery, own=True,
                       need=Need(Operation.READ, "topic_name", "topic_name")),
            AdminRoute("DELETE", one, self.delete, RetainedDeleted, OwnChangeQuery, own=True),
        ]  # fmt: skip

    async def _all(self, request: AdminRequest) -> Sequence[Message]:
        asked = expect(request.asked, RetainedQuery)
        if not is_filter(asked.filter):
            raise InvalidRequest(f"{asked.filter[:100]!r} is not a topic filter")
        found = list(
            islice(self._hub().retained.match(asked.filter, self._now_ms()), LOOKED_MAX + 1)
        )
        if len(found) > LOOKED_MAX:
            raise InvalidRequest(
                f"over {LOOKED_MAX} retained messages match {asked.filter[:100]!r}: narrow the "
                "filter"
            )
        return found

    async def _rows(
        self, messages: Sequence[Message], request: AdminRequest
    ) -> Sequence[RetainedRow]:
        return [self._row(each) for each in messages]

    def _row(self, message: Message) -> RetainedRow:
        return RetainedRow(
            node=self._node_id(),
            topic_name=message.topic,
            qos=message.qos,
            size_bytes=len(message.payload),
            arrived_ms=message.arrived_ms,
            expires_ms=message.expires_ms,
            client_id=message.origin,
        )

    def _known(self, request: AdminRequest) -> Message:
        name = request.path["topic_name"]
        message = self._hub().retained.get(name)
        if message is None or message.expired(self._now_ms()):
            raise UnknownRetained(f"nothing is retained under {name[:200]!r}")
        return message

    async def get(self, request: AdminRequest) -> RetainedAnswer:
        """Get a retained message with its payload."""
        message = self._known(request)
        payload, encoding = bytes(message.payload), "text"
        try:
            shown = payload.decode()
        except UnicodeDecodeError:
            shown, encoding = base64.b64encode(payload).decode(), "base64"
        return RetainedAnswer(
            **self._row(message).model_dump(), payload=shown,
            encoding="text" if encoding == "text" else "base64",
        )  # fmt: skip

    async def delete(self, request: AdminRequest) -> RetainedDeleted:
        """Delete a retained message from a node."""
        message = self._known(request)
        request.notes["before"] = {"size_bytes": len(message.payload), "qos": message.qos}
        if not expect(request.asked, OwnChangeQuery).dry_run:
            self._hub().retained.forget(message.topic)
            self._after()
        return RetainedDeleted(node=self._node_id(), topic_name=message.topic)
