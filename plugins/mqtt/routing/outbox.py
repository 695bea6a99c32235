"""The effects of what the core handled: bytes to write, records to append, questions to ask.

The core never performs them. The caller that feeds it (the engine, or a test) calls `Outbox.take`
after that input and carries out what it gets, as the driver of websockets does with `data_to_send`
and that of etcd's raft with `Ready`. Nothing else leaves the core.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lakemq.plugins.mqtt.routing.history import Reading
from lakemq.plugins.mqtt.state.appends import NOTHING, Appends, PendingAppend
from lakemq.plugins.mqtt.state.peer import Peer
from lakemq.plugins.mqtt.state.questions import Continuation, ExclusiveClaim, Question
from lakemq.plugins.mqtt.state.sessions import Session


class Effects(NamedTuple):
    """Effects of one turn, each to be carried out once, in this order.

    Writes come last, so that bytes queued by carrying out the others leave in the same turn.
    """

    appends: list[PendingAppend]
    """Append these records; `PendingAppend.settle` takes the outcomes."""
    loads: list[Session]
    """Load messages that these sessions wait for (`Outbound.missing`, `Outbound.loaded`)."""
    retained: list[Peer]
    """Send more of the retained messages that are due to them (`send_retained`)."""
    exchanges: list[Peer]
    """Tell the authentication exchange of these what the client said (`Dialogue.said`)."""
    claims: list[Peer]
    """Claim the sessions of these at their homes (`connecting.claimed`)."""
    reads: list[tuple[Reading, int]]
    """Read the next records of these replays, unless their `generation` is another by then."""
    questions: list[tuple[Question | ExclusiveClaim, Continuation]]
    """Have the authorizer, or a home, answer, then call back."""
    waits: list[tuple[set[str], Continuation]]
    """Wait until records of these topics come here, or for a second, then call back."""
    writes: list[Peer]
    """Write what is in `Peer.out`; close the network connection if `closing` is set."""


class Outbox:
    """Collects effects until they are taken. Lists are only ever appended to by the core."""

    __slots__ = (
        "appends",
        "claims",
        "exchanges",
        "loads",
        "questions",
        "reads",
        "retained",
        "waits",
        "writes",
    )

    def __init__(self) -> None:
        self.appends = Appends()
        self.loads: list[Session] = []
        self.retained: list[Peer] = []
        self.exchanges: list[Peer] = []
        self.claims: list[Peer] = []
        self.reads: list[tuple[Reading, int]] = []
        self.questions: list[tuple[Question | ExclusiveClaim, Continuation]] = []
        self.waits: list[tuple[set[str], Continuation]] = []
        self.writes: list[Peer] = []

    def __bool__(self) -> bool:
        return self.ready()

    def ready(self, enough: Mapping[str, int] = NOTHING) -> bool:
        """Whether `take` would return anything."""
        return bool(self.writes) or self.has_more(enough)

    def has_more(self, enough: Mapping[str, int] = NOTHING) -> bool:
        """Whether `take` would return anything but writes."""
        return bool(
            self.appends.ready(enough)
            or self.loads
            or self.retained
            or self.exchanges
            or self.claims
            or self.reads
            or self.questions
            or self.waits
        )

    def load(self, session: Session) -> None:
        """Load messages that the session waits for."""
        self.loads.append(session)

    def take_writes(self) -> list[Peer]:
        """Of the effects since the last call, `Effects.writes` alone."""
        writes, self.writes = self.writes, []
        return writes

    def take(self, enough: Mapping[str, int] = NOTHING) -> Effects:
        """All effects since the last call, but for appends that have not `enough` records (topic ->
        how many)."""
        # Lists are replaced, not cleared: effects that are carried out may put new ones here.
        effects = Effects(
            self.appends.take(enough),
            self.loads,
            self.retained,
            self.exchanges,
            self.claims,
            self.reads,
            self.questions,
            self.waits,
            self.writes,
        )
        self.loads, self.retained, self.exchanges, self.claims = [], [], [], []
        self.reads, self.questions, self.waits, self.writes = [], [], [], []
        return effects
