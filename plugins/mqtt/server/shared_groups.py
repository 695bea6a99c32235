"""Has the members of shared groups on all nodes share what comes, where there are other nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lakemq.plugins.mqtt.interest.exchange import InterestExchange
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.routing.shared import Group
from lakemq.plugins.mqtt.wire.messages import Message, Place

LOOK_S: Final = 0.1
"""Between a change of members and a look at what fell to those that are gone: changes gather."""


class SharedGroups:
    """Lives on the event loop."""

    def __init__(
        self,
        hub: Hub,
        interest: InterestExchange,
        later: Callable[[float, Callable[[], None]], None],
        after: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`later` calls back after some seconds, `after` carries out what the hub wants done."""
        self._hub = hub
        self._interest = interest
        self._later = later
        self._after = after
        self._now_ms = now_ms
        self._due = False
        interest.on_change = self._changed
        interest.on_group = lambda key: interest.sharing.heard(key, now_ms())

    def _changed(self) -> None:
        if self._interest.counts:
            self._hub.takes, self._hub.has_had = self._takes, self._has_had
            if not self._due:
                self._due = True
                self._later(LOOK_S, self._look)

    def _look(self) -> None:
        self._due = False
        self.tick()
        self._after()

    def tick(self) -> None:
        """Call about once a second, too: what was kept for others is let go of in time."""
        if self._hub.takes is None:
            return
        now_ms = self._now_ms()
        for key, message in self._interest.sharing.missed(now_ms):
            group = self._hub.index.group(*key)
            if group is not None:
                self._hub.deliver_shared(group, message, now_ms, streamed=False)

    def _takes(self, group: Group, message: Message, now_ms: int) -> bool:
        # What lies in no topic and comes here is heard by this node alone (`Hub.pass_on`).
        key = (group.name, group.topic_filter)
        return message.place is None or self._interest.sharing.takes(key, message, now_ms)

    def _has_had(self, group: Group, place: Place) -> bool:
        return self._interest.sharing.has_had((group.name, group.topic_filter), place)
