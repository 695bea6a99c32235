"""`$exclusive/<filter>`: one session has the filter. No IO.

On a node alone that is the first session that asks. Nodes that share sessions ask the filter's
home: it is claimed there like a session that belongs to the client, under a name that no client can
have. So it has one holder, an epoch, and is free when its session ends or its node is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from lakemq.plugins.mqtt.state.questions import ClaimPending, ExclusiveClaim
from lakemq.plugins.mqtt.state.sessions import Session
from lakemq.plugins.mqtt.wire.reasons import ProtocolError, Reason
from lakemq.plugins.mqtt.wire.topics import EXCLUSIVE

USER_KIND: Final = "exclusive"
"""In place of the kind of a user: whose claim it is; the name is the client id."""
MOVING_MS: Final = 5_000
"""How long a filter is kept for a session that has gone to another node, which claims it there."""


class Answer(NamedTuple):
    """What a home said to a claim."""

    epoch: int
    """0: refused."""
    why: str = ""
    reason: Reason = Reason.QUOTA_EXCEEDED


@dataclass(slots=True)
class Holding:
    """One filter."""

    session: Session
    text: str
    """The filter as the client wrote it."""
    epoch: int = 0
    """In which its home granted it; 0: it is still to be claimed, where nodes share sessions."""


def _nothing(name: str) -> None:
    """A callback that does nothing."""


class Exclusives:
    """The filters that sessions of this node have."""

    def __init__(self) -> None:
        self.held: dict[str, Holding] = {}
        """By filter."""
        self._answers: dict[ExclusiveClaim, Answer] = {}
        """Of claims of clients that subscribe."""
        self.on_held: Callable[[str], None] = _nothing
        self.on_freed: Callable[[str], None] = _nothing
        """Called with names of filters that sessions here come to have, and have no more."""
        self._moving: dict[str, tuple[int, int]] = {}
        """Name -> its epoch, and until when it is kept."""

    # -- subscribing

    def check(self, session: Session, topic_filter: str, *, shared: bool) -> None:
        """Whether the session may have it. `shared`: its home decides; raises ClaimPending until
        that has answered. Raises ProtocolError (0x97, 0x83)."""
        held = self.held.get(topic_filter)
        if held is not None and held.session is not session:
            raise ProtocolError("another client has it for itself", Reason.QUOTA_EXCEEDED)
        if not shared or (held is not None and held.epoch):
            return
        claim = ExclusiveClaim(session.client_id, topic_filter)
        answer = self._answers.get(claim)
        if answer is None:
            raise ClaimPending(claim)
        if not answer.epoch:
            del self._answers[claim]
            raise ProtocolError(answer.why, answer.reason)

    def hold(self, session: Session, topic_filter: str, text: str) -> None:
        """The session has it."""
        answer = self._answers.pop(ExclusiveClaim(session.client_id, topic_filter), None)
        held = self.held.get(topic_filter)
        if held is None or held.session is not session:
            held = self.held[topic_filter] = Holding(session, text)
        held.epoch = max(held.epoch, answer.epoch if answer is not None else 0)
        self.on_held(name_of(topic_filter))

    def is_anothers(self, session_id: str, topic_filter: str) -> bool:
        """Whether a session of another client has it on this node."""
        held = self.held.get(topic_filter)
        return held is not None and held.session.client_id != session_id

    def answered(self, claim: ExclusiveClaim, answer: Answer) -> None:
        """A home has answered a claim."""
        self._answers[claim] = answer

    def left_over(self, claim: ExclusiveClaim) -> int:
        """The epoch of a grant whose client was not there any more; 0: none."""
        answer = self._answers.pop(claim, None)
        return answer.epoch if answer is not None else 0

    # -- giving up

    def free(self, topic_filter: str, session: Session) -> int:
        """The session has it no more; returns the epoch that its home is to be told: 0: none."""
        held = self.held.get(topic_filter)
        if held is None or held.session is not session:
            return 0
        del self.held[topic_filter]
        self.on_freed(name_of(topic_filter))
        return held.epoch

    def move(self, session: Session, now_ms: int) -> None:
        """The session goes on at another node, with its filters."""
        for text, subscription in session.subscriptions.items():
            if text.startswith(EXCLUSIVE):
                topic_filter = subscription.address.topic_filter
                epoch = self.free(topic_filter, session)
                if epoch:
                    self._moving[name_of(topic_filter)] = (epoch, now_ms + MOVING_MS)

    def not_claimed(self, now_ms: int) -> dict[str, int]:
        """Names (and epochs) of filters that no other node has claimed, perhaps: to be freed."""
        due = {name: one[0] for name, one in self._moving.items() if one[1] <= now_ms}
        for name in due:
            del self._moving[name]
        return due

    # -- homes

    def unclaimed(self) -> list[ExclusiveClaim]:
        """What no home has granted yet: sessions came with it."""
        return [
            ExclusiveClaim(held.session.client_id, topic_filter)
            for topic_filter, held in self.held.items()
            if not held.epoch
        ]

    def claim_all_again(self) -> None:
        """This node has registered again: what it had before is free."""
        for held in self.held.values():
            held.epoch = 0

    def named(self, name: str) -> Holding | None:
        """What is held under a name that `name_of` made, and was granted."""
        held = self.held.get(name.removeprefix(EXCLUSIVE)) if is_exclusive(name) else None
        return held if held is not None and held.epoch else None


def name_of(topic_filter: str) -> str:
    """The name under which a filter is claimed."""
    return EXCLUSIVE + topic_filter


def is_exclusive(name: str) -> bool:
    """Whether it is the name of a filter, not a client id."""
    return name.startswith(EXCLUSIVE)
