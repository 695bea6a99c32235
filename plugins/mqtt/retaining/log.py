"""The topic of retained messages: read by every node, written by each through its leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from lakemq.broker_core.api.errors import CorruptBatch, LakeMQError, UnknownTopic
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.batch import CONTROL, split
from lakemq.broker_core.api.records.headers import decode_headers, encode_headers
from lakemq.broker_core.api.state.followed import FollowedRecord, FollowedTopic
from lakemq.broker_core.api.state.internal_topics import RETAINED as TOPIC
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.types import CommittedBatch, Offset, TopicInfo
from lakemq.plugins.mqtt.feeds.reading import Salvage
from lakemq.plugins.mqtt.retaining.agreement import Agreement, Entry
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.state.records import RecordReader
from lakemq.plugins.mqtt.state.sessions import Positions
from lakemq.plugins.mqtt.state.snapshots import (
    positions_bytes,
    read_positions,
    read_retained,
    read_source,
    retained_bytes,
    source_bytes,
)
from lakemq.plugins.mqtt.wire.messages import Message, Place

_log: Final = logging.getLogger(__name__)
SOURCE: Final = "source"
"""Header: the record that a message was retained by."""
POSITIONS_KEY: Final = b""
"""Key of the record in which a node alone tells up to where the topic is complete."""
PARTITION_KEY: Final = b"\0"
"""What keys begin with of records that tell it of one partition; no topic name does."""
GATHER_S: Final = 0.02
"""Between a change and its writing, where there are other nodes."""
START_WAIT_S: Final = 10.0
"""How long a start waits at most for messages that this node has."""
READ_BYTES: Final = 1024 * 1024
_PEER: Final = "peer"
"""What a node listens on that may retain messages, too."""


class RetainedLog:
    """Implements `Follower`. All methods run on the event loop."""

    def __init__(
        self,
        hub: Hub,
        broker: Broker,
        reader: RecordReader,
        accepts: Callable[[str, str], bool],
        now_ms: Callable[[], int],
        salvage: Salvage,
    ) -> None:
        """`accepts(topic, topic_name)`: whether records of the topic may come under that name."""
        self.topic = StateTopic(
            broker, TOPIC, routed=True, now_ms=now_ms, open_stored=salvage.opened
        )
        self.positions: Positions = {}
        """Of bound partitions: whatever was retained below them is in the topic."""
        self._hub = hub
        self._broker = broker
        self._reader = reader
        self._accepts = accepts
        self._now_ms = now_ms
        self._salvage = salvage
        self._agreement = Agreement(hub.retained)
        self._followed = FollowedTopic(broker, TOPIC, self, open_stored=salvage.opened)
        self._restored = asyncio.Event()
        self._written_at = 0
        self._writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._topic_ids: dict[str, str] = {}
        self._unwatch: list[Callable[[], None]] = []

    # -- life

    async def start(self) -> bool:
        """Follow the topic; whether what it holds is there, as it is on a node that has it."""
        await self.topic.ensure()
        self._nodes_changed()
        self._topic_ids = {topic.name: topic.topic_id for topic in self._broker.topics()}
        self._unwatch = [
            self._broker.watch_nodes(self._nodes_changed),
            self._broker.watch_topics(self._topic_changed),
        ]
        here = self._broker.serves(TOPIC, 0)
        return await self._followed.start(START_WAIT_S if here else 0)

    def begin(self, replayed: Collection[tuple[str, int]]) -> None:
        """`Hub.positions` tell from where on this node hears the bound partitions. `replayed`:
        those of which the records before that were retained already."""
        self._hub.retained.on_change = self._soon
        self._soon()
        before = {key: end for key, end in self._hub.positions.items() if key not in replayed}
        if before:
            self._catching_up = asyncio.create_task(self._catch_up(before))

    async def stop(self) -> None:
        """Follow no more what other nodes write."""
        for unwatch in self._unwatch:
            unwatch()
        if self._timer is not None:
            self._timer.cancel()
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.gather(self._catching_up, return_exceptions=True)
        await self._followed.stop()

    def _topic_changed(self, name: str, topic: TopicInfo | None) -> None:
        """Offsets of a topic that was deleted say nothing about another one of its name."""
        topic_id = topic.topic_id if topic is not None else ""
        if self._topic_ids.get(name, topic_id) != topic_id:
            self._hub.retained.forget_sources(name)
            self.positions = {key: end for key, end in self.positions.items() if key[0] != name}
        self._topic_ids[name] = topic_id

    def _nodes_changed(self) -> None:
        others = sum(_PEER in each.addresses for each in self._broker.nodes()) > 1
        if others and not self._hub.has_peers:
            self._hub.has_peers = True
            # A node alone does not look at what comes: it has written that itself.
            self._followed.read_again()
            self._soon()

    async def _catch_up(self, heard_from: Positions) -> None:
        """Retain what lies between what the topic has and what this node hears: all nodes that
        heard it may have died before it was written."""
        await self._restored.wait()
        for (topic, partition), end in heard_from.items():
            start = self.positions.get((topic, partition))
            if start is None or start >= end:
                continue
            try:
                await self._retain(topic, partition, start, end)
            except LakeMQError as error:
                text = "messages retained in %s/%d from offset %d on may be missing here: %s"
                _log.error(text, topic, partition, start, error)

    async def _retain(self, topic: str, partition: int, start: int, end: int) -> None:
        reader = self._broker.reader(topic, partition)
        offset = Offset(max(start, (await reader.bounds())[0]))
        while offset < end:
            got = await reader.fetch(offset, bytes_max=READ_BYTES, wait_ms=1000)
            for position, header in split(got.data):
                if header.attributes & CONTROL:
                    continue
                data = got.data[position : position + header.total_bytes]
                batch = CommittedBatch(topic, partition, Offset(header.base_offset), data)
                # `heard`: only what is retained, or must be noted otherwise.
                for message, _ in self._salvage.messages(self._reader, batch, lambda name: False):
                    if message.retain and self._accepts(topic, message.topic):
                        self._hub.retain(message)
            offset = got.next_offset

    # -- reading

    def restore(self, newest: Sequence[FollowedRecord]) -> None:
        """See `Follower`."""
        kept, names = self._hub.retained, {record.key for record in newest}
        for name in [one.topic for one in kept.everything()]:
            is_gone = name.encode() not in names and not self._agreement.is_open(name)
            if is_gone and not name.startswith("$SYS/"):
                kept.adopt(name, None, None, None)
        self._take(newest)
        self._restored.set()

    def take(self, records: Sequence[FollowedRecord]) -> None:
        """See `Follower`."""
        if self._hub.has_peers:
            self._take(records)

    def _take(self, records: Sequence[FollowedRecord]) -> None:
        for record in records:
            try:
                self._take_one(record)
            except (ValueError, CorruptBatch) as error:
                self._salvage.refused(Place(TOPIC, 0, record.offset), error)
        self._soon()

    def _take_one(self, record: FollowedRecord) -> None:
        if record.key == POSITIONS_KEY or record.key.startswith(PARTITION_KEY):
            if record.value is not None:
                self.positions.update(read_positions(record.value))
            return
        message, owner = None, None
        if record.value is not None:
            message, owner = read_retained(record.value)
        entry = Entry(record.key.decode(), message, owner, self._source(record.headers))
        self._agreement.read(entry, self._now_ms(), self._leads)

    def _source(self, headers: bytes) -> Place | None:
        """None: none, or in a topic that is no more."""
        stored = dict(decode_headers(headers)).get(SOURCE) if headers else None
        if stored is None:
            return None
        place, topic_id = read_source(stored)
        try:
            return place if self._broker.topic(place.topic).topic_id == topic_id else None
        except UnknownTopic:
            return None

    def _leads(self, place: Place) -> bool:
        try:
            return self._broker.serves(place.topic, place.partition)
        except LakeMQError:  # it was deleted
            return True

    # -- writing

    def _soon(self) -> None:
        """Look soon at what is to be written; on a node alone, the next checkpoint does."""
        if not self._hub.has_peers or self._timer is not None or self._writing:
            return
        due_ms = self._agreement.next_ms
        if due_ms is None:
            return
        delay_s = max(GATHER_S, (due_ms - self._now_ms()) / 1000)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._write(None)

    def checkpoint(self, records_max: int) -> None:
        """Write what was not written yet, and, when many records were delivered since, or anything
        is written, up to where the topic is complete."""
        behind = self._hub.delivered - self._written_at
        changed = self._agreement.next_ms is not None
        if changed or behind >= records_max:
            self._write(dict(self._hub.positions))

    def _write(self, positions: Positions | None) -> None:
        if self._writing:
            return
        due = self._agreement.due(self._now_ms(), self._leads, complete=positions is not None)
        entries = {each.topic.encode(): _value(each) for each in due}
        headers = {
            each.topic.encode(): header
            for each in due
            if each.source is not None and (header := self._header(each.source))
        }
        if positions is not None:
            # Behind the changes, which take effect in order: after a crash, records from these
            # positions on are retained again, and none below.
            entries |= self._complete_to(positions)
        if not entries:
            self._agreement.written()
            self._soon()
            return
        self._writing = True
        written_at = self._hub.delivered if positions is not None else self._written_at
        self.topic.write_all(entries, partial(self._written, written_at), headers=headers)

    def _complete_to(self, positions: Positions) -> dict[bytes, bytes | None]:
        led = {key: end for key, end in positions.items() if self._leads(Place(*key, end))}
        if not self._hub.has_peers:
            return {POSITIONS_KEY: positions_bytes(led)}
        return {
            b"%b%b/%d" % (PARTITION_KEY, key[0].encode(), key[1]): positions_bytes({key: end})
            for key, end in led.items()
            if self.positions.get(key) != end
        }

    def _header(self, source: Place) -> bytes:
        try:
            topic_id = self._broker.topic(source.topic).topic_id
        except UnknownTopic:
            return b""
        return encode_headers(((SOURCE, source_bytes(source, topic_id)),))

    def _written(self, written_at: int, error: LakeMQError | None) -> None:
        self._writing = False
        if error is None:
            self._written_at = written_at
            self._agreement.written()
        else:
            _log.error("retained messages could not be kept yet: %s", error)
            self._agreement.failed()
        self._soon()


def _value(entry: Entry) -> bytes | None:
    message: Message | None = entry.message
    return None if message is None else retained_bytes(message, entry.owner)
