"""`$replay/<start>/<filter>`: first what the journal holds, then what comes, each once.

A subscription that reads history stands beside the index until it has caught up. Every partition
has a cursor, the offset of the next record to look at:

    reading  records up to `hub.positions` come from the journal
    holding  the end is near: what is committed meanwhile is held in memory, behind the rest
    live     nothing is left; what is committed is delivered as it comes

When all cursors are live they are where the node is, so the subscription enters the index and is
one like any other. A client without room (window, socket) is given nothing: history waits in the
journal, not in its queue. When its connection ends, cursors that were live go back to reading.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol, cast

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.topic_filters import filters_overlap, matches
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.routing.subscriptions import SubscriptionIndex
from lakemq.plugins.mqtt.state.records import Meta
from lakemq.plugins.mqtt.state.sessions import Positions, Replay, Session, Start, Subscription
from lakemq.plugins.mqtt.wire.messages import Message
from lakemq.plugins.mqtt.wire.packets import NO_LOCAL, RETAIN_AS_PUBLISHED
from lakemq.plugins.mqtt.wire.reasons import ProtocolError, Reason

HELD_MAX: Final = 1000
"""Most records of one partition that are held for one client."""
CHUNK_COUNT_MAX: Final = 500
CHUNK_MAX_BYTES: Final = 256 * 1024
"""A client is given this much at once; others come between."""
_NAMES_MAX: Final = 4096
_OFFSET_DIGITS_MAX: Final = 12
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,6})?)?Z?)?")


def parse_start(text: str, now_ms: int) -> Start:
    """`earliest`; an offset (up to 12 digits); milliseconds since 1970 (13 digits and more); how
    long ago (`90s`, `15m`, `6h`, `7d`); or a UTC time (`2026-03-01`, `2026-03-01T12:30:00Z`).
    ProtocolError (0x8F)."""
    if text == "earliest":
        return Start()
    if text.isascii() and text.isdigit() and len(text) <= 18:
        number = int(text)
        return Start(number) if len(text) <= _OFFSET_DIGITS_MAX else Start(since_ms=number)
    if re.fullmatch(r"[0-9]{1,9}[smhd]", text):
        return Start(since_ms=max(0, now_ms - int(text[:-1]) * _UNITS_MS[text[-1]]))
    if text.isascii() and _DATE.fullmatch(text):
        try:
            moment = datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC)
        except ValueError:
            pass
        else:
            return Start(since_ms=max(0, int(moment.timestamp() * 1000)))
    raise ProtocolError(f"{text!r} is no start of a replay", Reason.TOPIC_FILTER_INVALID)


class Cursor:
    """How far one partition was read for one client."""

    __slots__ = ("held", "hold_from", "live", "offset", "partition", "topic")

    def __init__(self, topic: str, partition: int, offset: int | None) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        """Of the next record to look at; None: where `start` is was not asked yet."""
        self.live = False
        self.held: deque[Message] | None = None
        """What was committed since `hold_from`; None: nothing is held."""
        self.hold_from = 0


class Reading:
    """What goes through the journal to where the node is."""

    start = Start()

    def __init__(self, positions: Positions) -> None:
        """`positions`: how far it has come."""
        self.cursors = {key: Cursor(*key, offset) for key, offset in positions.items()}
        self.reading = False
        """A fetch of its next records is under way."""
        self.generation = 0
        """Grows when a fetch under way is not wanted any more."""
        self.rest: tuple[Cursor, Iterator[Message], int] | None = None
        """Records that were fetched and not handed over: cursor, messages, offset behind them."""
        self.backoff: Backoff | None = None
        """Its last read failed: when the next one may be."""

    @property
    def positions(self) -> Positions:
        """Where it stands, to be kept."""
        return {
            key: cursor.offset for key, cursor in self.cursors.items() if cursor.offset is not None
        }

    @property
    def behind(self) -> bool:
        """Whether the node has to come further before this can arrive."""
        return False

    @property
    def room(self) -> int:
        """How many records can be taken now."""
        raise NotImplementedError

    def deliver(self, message: Message, now_ms: int) -> bool:
        """Whether a session wants it."""
        raise NotImplementedError

    def note(self, message: Message, meta: Meta) -> None:
        """A record was read that is a publish of QoS 2, or was a delayed one."""

    def touch(self) -> None:
        """It has come further."""

    def found(self, hub: ReplayHub, key: tuple[str, int], end: int) -> None:
        """The node knows from now on where it is in a partition, which is at `end`."""

    def arrived(self, hub: ReplayHub, now_ms: int) -> None:
        """All cursors are live. Called in the turn in which the last one became so: no record is
        committed between, so none is missed and none comes twice."""
        raise NotImplementedError

    def next_cursor(self) -> Cursor | None:
        """The partition that is read next; None: all are live."""
        if self.rest is not None:
            return self.rest[0]
        for key, cursor in self.cursors.items():
            if not cursor.live:
                self.cursors[key] = self.cursors.pop(key)  # the others come first next time
                return cursor
        return None

    def pause(self) -> None:
        """The client is gone: whatever comes now lies in the journal for it."""
        # A fetch that is under way must not deliver to the next connection what this one was to
        # get.
        self.generation += 1
        self.reading, self.rest = False, None
        for cursor in self.cursors.values():
            cursor.live, cursor.held = False, None

    def located(self, cursor: Cursor, offset: int, end: int) -> None:
        """History begins at `offset`, or at `end`, where the node is, if that is nearer."""
        cursor.offset = min(offset, end)

    def approach(self, cursor: Cursor, end: int) -> bool:
        """Before records are fetched: hold what is committed from now on if the end is near.
        False: nothing is to be fetched."""
        assert cursor.offset is not None
        if cursor.held is None and end - cursor.offset <= HELD_MAX:
            cursor.held, cursor.hold_from = deque(), end
        return cursor.offset < self._limit(cursor, end)

    def _limit(self, cursor: Cursor, end: int) -> int:
        return end if cursor.held is None else cursor.hold_from

    def fetched(
        self, cursor: Cursor, messages: Iterator[Message], behind: int, end: int, now_ms: int
    ) -> None:
        """Hand over records as far as there is room. `behind`: offset behind `messages`; `end`: of
        the next record that the node delivers."""
        limit, count, size = self._limit(cursor, end), self.room, 0
        self.rest, generation = None, self.generation
        while count and size < CHUNK_MAX_BYTES:
            message = next(messages, None)
            if message is None:
                cursor.offset = max(cursor.offset or 0, min(behind, limit))
                return
            assert message.place is not None
            if message.place.offset >= limit:
                cursor.offset = limit
                return
            if message.place.offset < (cursor.offset or 0):  # batches are fetched whole
                continue
            cursor.offset = message.place.offset + 1
            if self.deliver(message, now_ms):
                count -= 1
                size += message.size_bytes
            if self.generation != generation:  # that was more than its connection could bear
                return
        # No room: what was fetched is handed over next time, so the journal is not read twice.
        self.rest = (cursor, messages, behind)

    def arrive(self, cursor: Cursor, end: int, now_ms: int) -> None:
        """The journal has no more up to the limit: hand over what was held, then be live."""
        if cursor.offset is None or cursor.held is None or self.rest is not None:
            return
        if cursor.offset < cursor.hold_from:
            return
        room, generation = self.room, self.generation
        while cursor.held and room and self.generation == generation:
            message = cursor.held.popleft()
            assert message.place is not None
            cursor.offset = message.place.offset + 1
            room -= self.deliver(message, now_ms)
        if not cursor.held and self.room and self.generation == generation:
            cursor.live, cursor.held, cursor.offset = True, None, end

    def committed(self, message: Message, now_ms: int) -> None:
        """A record became readable."""
        assert message.place is not None
        key = message.place[:2]
        cursor = self.cursors.get(key)
        if cursor is None:  # a partition that was added
            cursor = self.cursors[key] = Cursor(*key, 0)
        if cursor.live:
            cursor.offset = message.place.offset + 1
            self.deliver(message, now_ms)
        elif cursor.held is not None:
            cursor.held.append(message)
            # Slower than what comes: it goes back to reading, and loses nothing, since `offset` did
            # not move.
            if len(cursor.held) > HELD_MAX:
                cursor.held = None


class History(Reading):
    """A subscription on its way through the journal."""

    def __init__(self, subscription: Subscription, start: Start, positions: Positions) -> None:
        """`positions`: how far it had come in an earlier life."""
        super().__init__(positions)
        self.subscription = subscription
        self.start = start
        self._wanted: dict[str, bool] = {}

    @property
    def room(self) -> int:
        """How many records the client can be given now."""
        session = self.subscription.session
        connection, outbound = session.connection, session.outbound
        if connection is None or connection.blocked:
            return 0
        if not self.subscription.options & 3:
            return CHUNK_COUNT_MAX
        if outbound.queue or outbound.resending:
            return 0
        # Not before half of the window is free: else every PUBACK would start a fetch of one
        # record.
        window, unacked = connection.window, outbound.unacked
        return min(CHUNK_COUNT_MAX, window - unacked) if 2 * unacked <= window else 0

    def deliver(self, message: Message, now_ms: int) -> bool:
        """Whether the subscription has it so."""
        subscription, name = self.subscription, message.topic
        wanted = self._wanted.get(name)
        if wanted is None:
            if len(self._wanted) >= _NAMES_MAX:
                self._wanted.clear()
            wanted = self._wanted[name] = matches(subscription.address.topic_filter, name)
        session, options = subscription.session, subscription.options
        if not wanted or (options & NO_LOCAL and message.origin == session.client_id):
            return False
        if message.expired(now_ms):
            limits = session.outbound.limits
            limits.dropped_expired += 1
            limits.decisions.dropped("expired", session.client_id, message, None)
            return False
        session.deliver(
            message,
            min(options & 3, message.qos),
            message.retain and bool(options & RETAIN_AS_PUBLISHED),
            (subscription.identifier,) if subscription.identifier else (),
            now_ms,
        )
        return True

    def touch(self) -> None:
        """How far it has come is kept with its session."""
        self.subscription.session.touch()

    def found(self, hub: ReplayHub, key: tuple[str, int], end: int) -> None:
        """It has records of the partition, if the filter may match names that lie there."""
        if key[0] in _topics_of(hub, self):
            self.cursors[key] = Cursor(*key, None)

    def arrived(self, hub: ReplayHub, now_ms: int) -> None:
        """It is a subscription like any other."""
        session = self.subscription.session
        self.touch()
        for text, one in histories_of(session).items():
            if one is self:
                end(hub, session, text)
                hub.index.add(self.subscription)
                return


# -- histories of a hub


class Reads(Protocol):
    """Where reads are asked for."""

    reads: list[tuple[Reading, int]]


class ReplayHub(Protocol):
    """The hub, as replays need it."""

    bindings: Sequence[Binding]
    positions: Positions
    index: SubscriptionIndex
    histories: dict[Reading, None]
    """Replays of connected clients."""

    @property
    def outbox(self) -> Reads:
        """Where wanted reads are put."""


def histories_of(session: Session) -> dict[str, History]:
    """Replays of a session's subscriptions, by their text."""
    return cast("dict[str, History]", session.histories or {})


def begin(hub: ReplayHub, text: str, history: History) -> None:
    """A new subscription reads history."""
    session = history.subscription.session
    if session.histories is None:
        session.histories = {}
    session.histories[text] = history
    _start(hub, history)


def resume(hub: ReplayHub, session: Session) -> None:
    """The client is back, or has room again."""
    for history in histories_of(session).values():
        if history not in hub.histories:
            _start(hub, history)
        want(hub, history)


def _start(hub: ReplayHub, history: History) -> None:
    topics = _topics_of(hub, history)
    for topic, partition in hub.positions:
        if topic in topics and (topic, partition) not in history.cursors:
            history.cursors[topic, partition] = Cursor(topic, partition, None)
    hub.histories[history] = None
    want(hub, history)


def _topics_of(hub: ReplayHub, history: History) -> set[str]:
    topic_filter = history.subscription.address.topic_filter
    return {one.topic for one in hub.bindings if filters_overlap(one.topic_filter, topic_filter)}


def partition_found(hub: ReplayHub, key: tuple[str, int]) -> None:
    """A partition has a position from now on: what began before reads it, too."""
    for reading in hub.histories:
        if key not in reading.cursors:
            reading.found(hub, key, hub.positions[key])
            want(hub, reading)


def look_again(hub: ReplayHub) -> None:
    """A partition that had no position is gone: what waited for it goes on."""
    for reading in hub.histories:
        want(hub, reading)


def want(hub: ReplayHub, reading: Reading) -> None:
    """Ask for its next records, if there is room for them."""
    if not reading.reading and reading in hub.histories and reading.room:
        reading.reading = True
        hub.outbox.reads.append((reading, reading.generation))


def pause(hub: ReplayHub, session: Session) -> None:
    """The client is gone."""
    for history in histories_of(session).values():
        history.pause()
        hub.histories.pop(history, None)


def end(hub: ReplayHub, session: Session, text: str) -> bool:
    """The subscription ends; False: it reads no history."""
    histories = histories_of(session)
    history = histories.pop(text, None)
    if history is None:
        return False
    session.histories = cast("dict[str, Replay]", histories) or None
    history.pause()
    hub.histories.pop(history, None)
    return True


def read_on(hub: ReplayHub, reading: Reading, cursor: Cursor | None, now_ms: int) -> None:
    """A read has ended: go on, or be done."""
    reading.reading = False
    if cursor is not None:
        reading.arrive(cursor, hub.positions.get((cursor.topic, cursor.partition), 0), now_ms)
    if reading.next_cursor() is None:
        reading.arrived(hub, now_ms)
        return
    reading.touch()
    want(hub, reading)


def committed(readings: Iterable[Reading], message: Message, now_ms: int) -> None:
    """A record became readable."""
    for reading in list(readings):
        reading.committed(message, now_ms)
