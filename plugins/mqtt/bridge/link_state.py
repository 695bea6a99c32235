"""What one link knows, and must not forget when its node dies or another one runs it."""

from __future__ import annotations

import asyncio
from typing import Any

from lakemq.broker_core.api.errors import CorruptLog
from lakemq.broker_core.api.ports import Broker
from lakemq.plugins.mqtt.bridge.config import LinkSettings
from lakemq.plugins.mqtt.bridge.incoming.inbox import Inbox
from lakemq.plugins.mqtt.bridge.incoming.receiver import Receiver
from lakemq.plugins.mqtt.bridge.outgoing.outbox import Outbox
from lakemq.plugins.mqtt.bridge.outgoing.source import Source
from lakemq.plugins.mqtt.bridge.rules import Rules
from lakemq.plugins.mqtt.bridge.state_log import STATES, Kept, StateLog


class LinkState:
    """Both directions of one link, over all of its connections."""

    def __init__(
        self, settings: LinkSettings, broker: Broker, states: StateLog, kept: Kept | None
    ) -> None:
        """`kept`: the persisted state; None: the link is new."""
        self.settings = settings
        self.name = settings.name
        self.is_new = kept is None
        self.client_id = settings.client_id or _default_client_id(settings, broker, kept)
        self.corrupt = kept if isinstance(kept, CorruptLog) else None
        """Why the link can't go on from its state, without which it would repeat or lose records:
        it is not made."""
        self.rules = Rules([each.rule() for each in settings.rules])
        count_max = settings.inflight_max
        if self.rules.sends_exactly_once:
            count_max = min(count_max, settings.inflight_qos2_max)
        self.outbox = Outbox(count_max, settings.inflight_max_bytes)
        self.inbox = Inbox(settings.inflight_max_bytes)
        if isinstance(kept, dict):
            self._load(kept)
        self.source = Source(broker, settings, self.rules, self.outbox)
        self.receiver = Receiver(broker, self.rules, self.inbox, self.name, self.client_id)
        self._states = states
        self._writing = asyncio.Lock()

    def _load(self, state: dict[str, Any]) -> None:
        try:
            self.outbox.load(state["outgoing"])
            self.inbox.load(state["incoming"])
        except (KeyError, TypeError, ValueError) as error:
            self.corrupt = CorruptLog(f"{STATES}: state of link {self.name!r}: {error!r}")

    async def persist(self) -> None:
        """Returns when the state is durable. Raises what the append failed with."""
        async with self._writing:
            await self._states.write(self.name, self._state)

    def _state(self) -> dict[str, Any]:
        mine = {} if self.settings.client_id else {"client_id": self.client_id}
        return {**mine, "outgoing": self.outbox.state(), "incoming": self.inbox.state()}


def _default_client_id(settings: LinkSettings, broker: Broker, kept: Kept | None) -> str:
    """The same on all nodes, so that the remote broker has one session, and one connection. A link
    that an older build made goes on with the session that it has."""
    if isinstance(kept, dict):
        found = kept.get("client_id")
        if isinstance(found, str) and found:
            return found
        return f"lakemq-{broker.node_id}-{settings.name}"
    return f"lakemq-{broker.cluster_id}-{settings.name}"
