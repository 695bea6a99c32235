"""Records that became readable, on their way into the hub."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from lakemq.broker_core.api.records.batch import read_header
from lakemq.broker_core.api.tracing import Traces
from lakemq.broker_core.api.types import CommittedBatch
from lakemq.plugins.mqtt.feeds.reading import Salvage
from lakemq.plugins.mqtt.feeds.slices import Slices
from lakemq.plugins.mqtt.feeds.traced_routes import RouteBatch, traced
from lakemq.plugins.mqtt.routing import history
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.state.records import RecordReader
from lakemq.plugins.mqtt.wire.topics import REMEMBERED_CHARS_MAX

_HOMES_MAX: Final = 65_536
_HEARD_MAX: Final = 1024
_RECORDS_A_SLICE: Final = 64


class _Heard(dict[str, bool]):
    """Whether topic names have a subscriber, each asked once: most repeat."""

    def __init__(self, ask: Callable[[str], bool]) -> None:
        self._ask = ask

    def __missing__(self, name: str) -> bool:
        if len(self) >= _HEARD_MAX:
            self.clear()
        found = self[name] = self._ask(name)
        return found


class Arrivals:
    """Delivers committed batches in order, a large one with pauses."""

    def __init__(
        self,
        hub: Hub,
        reader: RecordReader,
        salvage: Salvage,
        after: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._hub = hub
        self._reader = reader
        self._salvage = salvage
        self._now_ms = now_ms
        self.slices = Slices(after)
        """Records that are to be delivered."""
        self._deliver: RouteBatch = self._route
        self._early: list[tuple[str, Sequence[CommittedBatch]]] | None = None
        """What was committed while recovery ran."""
        self.fed: set[tuple[str, int]] = set()
        """Partitions that a feed delivers: what taps say of them is left out."""
        self._homes: dict[str, str] = {}
        """Topic name -> the topic it is bound to."""

    def follow(self, traces: Traces) -> None:
        """Make spans, from now on."""
        self._deliver = traced(self._route, traces, self._hub.delivery)

    def hold(self) -> None:
        """Keep what comes until `release`: positions are being read."""
        self._early = []

    def release(self) -> None:
        """Deliver what came since `hold`: `_route` leaves out what lies below `Hub.positions`."""
        early, self._early = self._early or [], None
        for topic, batches in early:
            self.committed(topic, batches)

    def stop(self) -> None:
        """Deliver nothing more."""
        self.slices.stop()

    def committed(self, topic: str, batches: Sequence[CommittedBatch]) -> None:
        """Records became readable: deliver those that the bindings put into this topic."""
        if self._early is not None:
            self._early.append((topic, batches))
            return
        for batch in batches:
            if not self.fed or (batch.topic, batch.partition) not in self.fed:
                self._take(topic, batch)
        if self.slices.waiting:
            self.slices.begin()

    async def feed(self, topic: str, batches: Sequence[CommittedBatch]) -> None:
        """Deliver batches that were read; returns when they are delivered."""
        delivered = asyncio.Event()
        for batch in batches:
            self._take(topic, batch)
        self.slices.add(_set(delivered), 0)
        self.slices.begin()
        await delivered.wait()

    def _take(self, topic: str, batch: CommittedBatch) -> None:
        # In order: a batch goes out at once only when none before it waits for its turn.
        few = batch.columns is not None and len(batch.columns.values) <= _RECORDS_A_SLICE
        if few and not self.slices.waiting:
            for _ in self._deliver(topic, batch):
                pass
            return
        self.slices.add(self._deliver(topic, batch), len(batch.data))

    def _route(self, topic: str, batch: CommittedBatch) -> Iterator[None]:
        """Deliver a batch, with a pause after some records: `positions` is right then, too."""
        now_ms, hub = self._now_ms(), self._hub
        key = (batch.topic, batch.partition)
        start = hub.positions.get(key, 0)
        heard, homes = _Heard(partial(self.heard, topic)), self._homes
        rows = self._salvage.messages(self._reader, batch, heard.__getitem__)
        for count, (message, meta) in enumerate(rows, 1):
            assert message.place is not None
            if message.place.offset >= start and (
                homes.get(message.topic) == topic or self.accepts(topic, message.topic)
            ):
                if meta.marked:
                    hub.note_stored(message, meta)
                hub.route(message, now_ms)
                if hub.histories:
                    history.committed(hub.histories, message, now_ms)
            if not count % _RECORDS_A_SLICE:
                hub.positions[key] = max(start, message.place.offset + 1)
                yield
                heard.clear()  # what is subscribed to may have changed
        if batch.columns is not None:
            records = len(batch.columns.values)
            hub.delivered += records
            behind = batch.base_offset + records
        else:
            header = read_header(batch.data)
            hub.delivered += header.record_count
            behind = header.last_offset + 1
        # A replica that has come to this node may bring what a feed has delivered.
        hub.positions[key] = max(start, behind)

    def heard(self, topic: str, name: str) -> bool:
        """Whether records of `topic` under `name` have a subscriber, or must be counted as not
        belonging there."""
        if self._hub.histories:
            return True
        match = self._hub.index.match(name)
        return bool(match.targets or match.groups) or self._homes.get(name) != topic

    def accepts(self, topic: str, name: str) -> bool:
        """`belongs`, for records that are seen for the first time."""
        belongs = self.belongs(topic, name)
        self._reader.unreadable += not belongs
        return belongs

    def belongs(self, topic: str, name: str) -> bool:
        """Whether records of `topic` may reach subscribers under `name`: a native producer must
        not speak under names that are bound elsewhere."""
        home = self._homes.get(name)
        if home is None:
            binding = self._hub.binding(name)
            home = binding.topic if binding is not None else ""
            if len(name) <= REMEMBERED_CHARS_MAX:
                if len(self._homes) >= _HOMES_MAX:
                    self._homes.clear()
                self._homes[name] = home
        return home == topic


def _set(event: asyncio.Event) -> Iterator[None]:
    event.set()
    yield from ()
