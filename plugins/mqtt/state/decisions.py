"""Decisions that leave no other trace: what was refused, what was not delivered and why, who began
or ended a subscription. `lakemq explain` reads them.

Only the newest of each kind are held, so that a flood of one kind pushes out none of another. What
is stored or delivered is not noted: journal and sessions tell that, and it is the hot path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

from lakemq.plugins.mqtt.wire.messages import Message, Place

Kind = Literal[
    "refused", "not_stored", "no_subscriber", "no_local", "queue_full", "expired", "too_large",
    "gone", "qos_0", "subscribe_refused", "subscribed", "unsubscribed",
]  # fmt: skip
PUBLISHES: Final[tuple[Kind, ...]] = ("refused", "not_stored", "no_subscriber")
"""About a publish as such; `Decision.client_id` is the publisher's."""
DROPS: Final[tuple[Kind, ...]] = (
    "no_local", "queue_full", "expired", "too_large", "gone", "qos_0",
)  # fmt: skip
"""About one delivery that there was none of; `Decision.client_id` is the subscriber's."""
SUBSCRIPTIONS: Final[tuple[Kind, ...]] = ("subscribe_refused", "subscribed", "unsubscribed")
"""`Decision.topic` is a topic filter."""
TEXT_MAX: Final = 512
"""Characters of a topic name or a reason that are held: clients choose them."""


class Decision(NamedTuple):
    """One of them."""

    at_ms: int
    kind: Kind
    client_id: str
    topic: str
    """Topic name, or filter; at most `TEXT_MAX` characters of it. Empty: its message was not in
    memory, `place` tells it."""
    origin: str | None = None
    """Client id of the publisher of what was not delivered."""
    place: Place | None = None
    """Where the message lies; None: nowhere."""
    why: str = ""
    publishes: int = 1
    """How many publishes in a row it was about."""


class Decisions:
    """The newest decisions, at most `count_max` of each kind; 0: none are held."""

    __slots__ = ("_held", "_now_ms", "_start_ms", "on")

    def __init__(self, count_max: int = 0, now_ms: Callable[[], int] = lambda: 0) -> None:
        kinds = (*PUBLISHES, *DROPS, *SUBSCRIPTIONS)
        self.on = count_max > 0
        self._now_ms = now_ms
        self._start_ms = now_ms()
        self._held: dict[Kind, deque[Decision]] = {kind: deque(maxlen=count_max) for kind in kinds}

    def note(
        self,
        kind: Kind,
        client_id: str,
        topic: str,
        *,
        origin: str | None = None,
        place: Place | None = None,
        why: str = "",
        publishes: int = 1,
    ) -> None:
        """Note one."""
        if self.on:
            self._held[kind].append(
                Decision(
                    self._now_ms(), kind, client_id, topic[:TEXT_MAX], origin, place,
                    why[:TEXT_MAX], publishes,
                )
            )  # fmt: skip

    def dropped(
        self, kind: Kind, client_id: str, message: Message | None, place: Place | None
    ) -> None:
        """A delivery to the client will not be. `message`: None: it was not loaded."""
        if message is None:
            self.note(kind, client_id, "", place=place)
        else:
            self.note(kind, client_id, message.topic, origin=message.origin, place=message.place)

    def of(self, *kinds: Kind) -> Iterator[Decision]:
        """Those of some kinds, oldest first within each."""
        for kind in kinds:
            yield from self._held[kind]

    def whole_since_ms(self, *kinds: Kind) -> int | None:
        """Since when every decision of these kinds is held; None: none is."""
        if not self.on:
            return None
        since_ms = self._start_ms
        for kind in kinds:
            held = self._held[kind]
            if len(held) == held.maxlen:  # older ones may have been pushed out
                since_ms = max(since_ms, held[0].at_ms)
        return since_ms
