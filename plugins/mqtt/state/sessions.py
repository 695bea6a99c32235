"""Sessions: what a client's state is while it is connected and after.

Source: MQTT 5.0 section 4.1 (session state), 3.1.2.5 (will), 3.1.2.11.2 (expiry).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from lakemq.broker_core.api.types import Principal
from lakemq.plugins.mqtt.state.delivery import Delivery, DeliveryLimits, Outbound
from lakemq.plugins.mqtt.state.ledger import Action, Ledger
from lakemq.plugins.mqtt.state.peer import Peer
from lakemq.plugins.mqtt.wire.messages import Message, Place
from lakemq.plugins.mqtt.wire.packets import Will
from lakemq.plugins.mqtt.wire.reasons import Reason
from lakemq.plugins.mqtt.wire.topics import Address

FOR_EVER_S: Final = 0xFFFF_FFFF
"""Session expiry interval that means: never."""
Positions = dict[tuple[str, int], int]
"""(topic, partition) -> offset of the next record that was not dealt with yet."""
NOWHERE: Final = Place("", 0, -1)
"""Place of a publish that no topic takes."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where history begins: at an offset, the same in every partition, or at a time."""

    offset: int = 0
    since_ms: int | None = None


class Replay(Protocol):
    """A subscription that reads history, as it is kept with its session."""

    start: Start

    @property
    def positions(self) -> Positions:
        """Offset of the next record to look at, by topic and partition."""


class Index(Protocol):
    """Where subscriptions are found by topic names."""

    def add(self, subscription: Subscription) -> None:
        """Add or, for the same session and address, replace."""

    def remove(self, subscription: Subscription) -> None:
        """Remove what `add` put in."""


class Coming(Protocol):
    """The way of a session that came from another node to where this node is."""

    @property
    def index(self) -> Index:
        """Has its subscriptions until then."""

    @property
    def unclean(self) -> bool:
        """Whether an owner that is gone may have had publishes stored that are not found yet."""

    def positions_of(self, session: Session) -> Positions:
        """Up to where it has got everything by now."""

    def then(self, done: Callable[[int], None]) -> None:
        """Have `done(now_ms)` called, too, when it is where this node is."""


def _nothing(session: Session) -> None:
    """A callback that does nothing."""


class Subscription:
    """One session's wish for one topic filter."""

    __slots__ = ("address", "identifier", "options", "session")

    def __init__(self, session: Session, address: Address, options: int, identifier: int) -> None:
        self.session = session
        self.address = address
        self.options = options
        """The options byte of SUBSCRIBE: QoS granted, no local, retain as published."""
        self.identifier = identifier
        """0: none."""

    @property
    def key(self) -> object:
        """A session has one subscription of each key at an address."""
        return self.session


class Beside(Subscription):
    """A subscription at an address where its session may have others: `$exclusive/t` beside `t`."""

    __slots__ = ()

    @property
    def key(self) -> object:
        """Itself: it replaces no other subscription."""
        return self


class Session:
    """One client's state, connected or not."""

    __slots__ = (
        "client_id",
        "coming",
        "connection",
        "ends_ms",
        "epoch",
        "expiry_s",
        "former",
        "histories",
        "incarnation",
        "incoming",
        "ledger",
        "on_missing",
        "on_room",
        "outbound",
        "principal",
        "released",
        "subscription_bytes",
        "subscriptions",
        "taken",
        "will",
        "will_due_ms",
    )

    def __init__(
        self,
        client_id: str,
        principal: Principal,
        limits: DeliveryLimits,
        ledger: Ledger | None = None,
        incarnation: str = "",
    ) -> None:
        self.client_id = client_id
        self.principal = principal
        self.ledger = ledger
        """None: sessions live in memory alone."""
        self.incarnation = incarnation
        """Tells this session from others that the client id had or will have."""
        self.epoch = 0
        """In which this node owns it, where nodes share sessions; 0: they do not."""
        self.taken = self.former = 0
        """Epochs in which this node, and its owner before, took it over; 0: it was made there."""
        self.coming: Coming | None = None
        """None: it is where the node is."""
        self.expiry_s = 0
        self.connection: Peer | None = None
        self.subscriptions: dict[str, Subscription] = {}
        """By the filter as the client wrote it, `$share/...` included."""
        self.subscription_bytes = 0
        """Of these texts."""
        self.histories: dict[str, Replay] | None = None
        """Replays of its subscriptions, by their text, which `routing.history` puts here; None: it
        has none."""
        self.on_room: Callable[[Session], None] = _nothing
        """Called when the client can be given more than before, while there are replays."""
        self.on_missing: Callable[[Session], None] = _nothing
        """Called when messages must be loaded before the next can be sent."""
        self.outbound = Outbound(self, limits)
        self.incoming: dict[int, Place | Peer] = {}
        """QoS 2 publishes that came and were not released: packet identifier -> where it is
        stored; while it is being stored, the connection on which it came."""
        self.released: dict[tuple[str, int], int] = {}
        """(topic, partition) -> offset behind the last QoS 2 publish that was released."""
        self.will: Will | None = None
        self.will_due_ms: int | None = None
        """When the will is published, while disconnected."""
        self.ends_ms: int | None = None
        """When the session ends, while disconnected; None: connected, or never."""

    @property
    def stamp(self) -> str:
        """Tells whose QoS 2 publish a record is: this session's, while this node owned it."""
        return f"{self.incarnation}.{self.taken:x}" if self.taken else self.incarnation

    def stamped(self, stamp: str, recovering: bool) -> bool:
        """Whether a record of that stamp is of this session and owner; `recovering`: or of the one
        whose state it came with, or one behind that."""
        incarnation, _, epoch = stamp.partition(".")
        if incarnation != self.incarnation:
            return False
        try:
            taken = int(epoch, 16) if epoch else 0
        except ValueError:
            return False
        return taken >= self.former if recovering else taken == self.taken

    @property
    def durable(self) -> bool:
        """Whether the session is kept beyond the process: where nodes share sessions, others
        publish the will of one that ends with its connection."""
        kept = self.expiry_s > 0 or (self.epoch > 0 and self.will is not None)
        return self.ledger is not None and kept

    def keep(self, connection: Peer | None, action: Action, now_ms: int) -> None:
        """Do `action` once the session as it is now is kept; at once if it is not durable."""
        if self.ledger is not None and self.expiry_s > 0:
            self.ledger.keep(self.client_id, connection, action)
        else:
            action(now_ms)

    def touch(self) -> None:
        """Something changed that may be kept later, or not at all."""
        if self.ledger is not None and self.expiry_s > 0:
            self.ledger.touch(self.client_id)

    def keep_soon(self) -> None:
        """It got what no record behind its positions brings again: a crash would lose that."""
        if self.ledger is not None and self.expiry_s > 0:
            self.ledger.schedule_write(self.client_id)

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        now_ms: int,
        shared: object | None = None,
        streamed: bool = False,
    ) -> None:
        """Send, or for QoS 1 and 2 keep. QoS 0 without a free connection is dropped, counted.
        `streamed`: it comes with the records of its partition, in their order."""
        connection = self.connection
        if qos:
            delivery = Delivery(message, qos, retain, identifiers, shared)
            delivery.streamed = streamed
            if not self.outbound.offer(delivery, connection, now_ms) and connection is not None:
                connection.close(Reason.QUOTA_EXCEEDED, "the queue of this session is full", now_ms)
            return
        # Queueing QoS 0 is optional (4.1); it would fill memory for clients that read too slowly.
        limits = self.outbound.limits
        if connection is None or connection.blocked:
            limits.dropped_qos_0 += 1
            limits.decisions.dropped("qos_0", self.client_id, message, None)
            if connection is not None:
                connection.traffic.dropped += 1
            return
        head, rest = connection.wire(message, 0, retain, identifiers, now_ms)
        if len(head) + len(rest) > connection.packet_max_bytes:
            limits.dropped_too_large += 1
            limits.decisions.dropped("too_large", self.client_id, message, None)
            return
        connection.write(head + rest)
        connection.traffic.sent[0] += 1
        limits.sent += 1

    def has_room(self) -> None:
        """The client can be given more than before."""
        if self.histories:
            self.on_room(self)

    def miss(self) -> None:
        """Messages must be loaded before the next can be sent."""
        self.on_missing(self)

    def due_ms(self) -> int | None:
        """When this session next wants attention while disconnected."""
        times = [time for time in (self.will_due_ms, self.ends_ms) if time is not None]
        return min(times, default=None)
