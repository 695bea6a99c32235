"""A bench whose storage survives while the broker does not: `crash` forgets everything that was
not durable and recovers from what was.

An append goes in two steps, so that a crash can come between: `write_*` makes it durable, then
`confirm_*` tells the hub.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.records.batch import encode as encode_batch
from lakemq.broker_core.api.state.internal_topics import DELAYED
from lakemq.broker_core.api.types import ANONYMOUS, Columns, CommittedBatch, Offset, Placed
from lakemq.plugins.mqtt.routing.delaying import (
    POSITIONS_KEY,
    heard,
    positions_to_keep,
    release_removed,
    scan_from,
)
from lakemq.plugins.mqtt.routing.replay import Replay
from lakemq.plugins.mqtt.state.appends import PendingAppend
from lakemq.plugins.mqtt.state.records import RecordReader
from lakemq.plugins.mqtt.state.snapshots import (
    positions_bytes,
    read_positions,
    read_retained,
    read_session,
    retained_bytes,
    session_bytes,
)
from lakemq.plugins.mqtt.wire.packets import NO_PROPERTIES, V311, Connack, Connect
from tests.support.mqtt.bench import Bench, Device


class CrashBench(Bench):
    """Keeps bytes, and only bytes, over a crash."""

    def __init__(self, **options: Any) -> None:
        super().__init__(durable=True, **options)
        self.kept_sessions: dict[str, bytes] = {}
        self.kept_retained: dict[str, bytes] = {}
        self.kept_positions = positions_bytes({})
        self.crashes = 0
        self._unconfirmed: list[Callable[[], None]] = []
        self._write_delays()

    # -- storage, in two steps

    @property
    def can_write(self) -> bool:
        ledger = self.hub.ledger
        assert ledger is not None
        return bool(self.hub.outbox.appends) or ledger.due or bool(self.hub.delays.removed)

    @property
    def can_confirm(self) -> bool:
        return bool(self._unconfirmed)

    def write_records(self) -> None:
        """Publishes that wait become durable and are delivered; their senders hear later."""
        for lane in self.hub.outbox.appends.take():
            base, count = self._offsets.get(lane.topic, 0), len(lane.values)
            self._offsets[lane.topic] = base + count
            data = encode_batch(lane.columns(), now_ms=self.now_ms, base_offset=base)
            batch = CommittedBatch(lane.topic, 0, Offset(base), data)
            self.stored.append(lane)
            self._unconfirmed.append(self._settlement(lane, base, count))
            if lane.topic == DELAYED:
                self.log.setdefault(DELAYED, []).append(batch)
                continue
            self.commit(batch)
            self.hub.delivered += count

    def _settlement(self, lane: PendingAppend, base: int, count: int) -> Callable[[], None]:
        return lambda: lane.settle(range(count), Placed(0, Offset(base)), self.now_ms)

    def write_sessions(self) -> None:
        """Changed sessions become durable; who waits for that hears later."""
        hub = self.hub
        ledger = hub.ledger
        assert ledger is not None
        if not ledger.due:
            return
        alive = set()
        for client_id in ledger.begin().client_ids:
            session = hub.sessions.get(client_id)
            if session is not None and session.durable:
                self.kept_sessions[client_id] = session_bytes(session, hub.positions)
                alive.add(client_id)
            else:
                self.kept_sessions.pop(client_id, None)
        self._unconfirmed.append(lambda: ledger.done(alive, hub.delivered, self.now_ms))

    def write_delays(self) -> None:
        """Removals of delayed publishes become durable; what waited for that comes later."""
        delays = self.hub.delays
        if delays.removed and not delays.removing:
            hub, leaving, now_ms = self.hub, delays.take_leaving(), self.now_ms
            self._write_delays()

            def written() -> None:
                delays.removal_ended(leaving, failed=False)
                release_removed(hub, leaving, now_ms)

            self._unconfirmed.append(written)

    def _write_delays(self) -> None:
        delays = self.hub.delays
        removed = list(delays.begin_removal())
        delays.kept_positions = positions_to_keep(self.hub, {})
        keys = [*(key.encode() for key in removed), POSITIONS_KEY]
        values = [*([None] * len(removed)), positions_bytes(delays.kept_positions)]
        base = self._offsets.get(DELAYED, 0)
        self._offsets[DELAYED] = base + len(keys)
        data = encode_batch(Columns(values, keys), now_ms=self.now_ms, base_offset=base)
        self.log.setdefault(DELAYED, []).append(CommittedBatch(DELAYED, 0, Offset(base), data))

    def checkpoint(self) -> None:
        """Lazy sessions become urgent; retained messages become durable."""
        assert self.hub.ledger is not None
        self.hub.ledger.checkpoint(self.hub.delivered, 1_000_000, 1_000_000)
        for topic, message in self.hub.retained.take_changes().items():
            if message is None:
                self.kept_retained.pop(topic, None)
            else:
                self.kept_retained[topic] = retained_bytes(
                    message, self.hub.retained.owner_of(topic)
                )
        self.kept_positions = positions_bytes(self.hub.positions)

    def confirm(self) -> None:
        """The oldest append that is durable is reported."""
        self._unconfirmed.pop(0)()
        self.load()

    def confirm_one(self) -> None:
        """The oldest append that is durable is reported, if there is one."""
        if self.can_confirm:
            self.confirm()

    def settle(self) -> None:
        """Until storage has nothing left to do."""
        while self.can_write or self.can_confirm or self.hub.outbox.loads:
            self.write_records()
            self.write_sessions()
            self.write_delays()
            while self.can_confirm:
                self.confirm()
            self.load()

    def settle_sessions(self) -> None:
        """Until sessions are kept and all is confirmed; fetches stay under way."""
        while self.can_write or self.can_confirm:
            self.write_records()
            self.write_sessions()
            self.write_delays()
            while self.can_confirm:
                self._unconfirmed.pop(0)()

    def store(self, error: Any = None) -> int:
        assert error is None
        before = sum(len(lane.values) for lane in self.stored)
        self.settle()
        return sum(len(lane.values) for lane in self.stored) - before

    # -- crash

    def crash(self) -> None:
        """kill -9, and start again."""
        self.crashes += 1
        self._unconfirmed.clear()
        self.hub = self._new_hub()
        self._reader = RecordReader(self.hub.names)
        states = [read_session(client_id, kept) for client_id, kept in self.kept_sessions.items()]
        for kept in self.kept_retained.values():
            self.hub.retained.put(*read_retained(kept))
        self.hub.retained.take_changes()
        replay = Replay(self.hub, states, read_positions(self.kept_positions))
        self._hear_delayed()
        self.messages.clear()
        published: set[Any] = set()
        for topic in self._topics:
            end = self._offsets.get(topic, 0)
            start = replay.start_of(topic, 0, end)
            for batch in self.log.get(topic, ()):
                for message, meta in self._reader.read(batch):
                    assert message.place is not None
                    if message.place.offset >= scan_from(self.hub, (topic, 0), end):
                        published.update({meta.delayed_id} - {None})
                    self.messages[message.place] = message
                    if message.place.offset >= start:
                        replay.record(message, meta, self.now_ms)
            self.hub.positions[topic, 0] = end
        replay.finish(self.now_ms)
        self.hub.delays.lead(published, {})
        self._write_delays()
        self.hub.delays.removal_ended([], failed=False)

    def _hear_delayed(self) -> None:
        newest: dict[bytes, tuple[int, bytes | None, bytes]] = {}
        for batch in self.log.get(DELAYED, ()):
            opened = RecordBatch(batch.data)
            rows = zip(
                opened.offsets(), opened.values(), opened.encoded_headers(), strict=True
            )  # fmt: skip
            newest |= dict(zip((key or b"" for key in opened.keys()), rows, strict=True))  # noqa: SIM118
        for key, (offset, value, headers) in newest.items():
            heard(self.hub, offset, key, value, headers, recovering=True)

    def connect(self, client_id: str = "", **options: Any) -> Device:  # type: ignore[override]
        """As in `Bench`; storage answers as far as CONNACK needs it."""
        device = self.dial(options.get("version", V311))
        device.send(
            Connect(
                client_id,
                device.version,
                options.get("clean", True),
                will=options.get("will"),
                properties=options.get("properties", NO_PROPERTIES),
            )
        )
        device.connection.authenticated(options.get("principal", ANONYMOUS), self.now_ms)
        self.settle()
        (device.connack,) = device._decoder.feed(device.connection.out.pop(0))  # type: ignore[attr-defined]
        assert isinstance(device.connack, Connack)  # type: ignore[attr-defined]
        return device
