"""Delayed publishes in their topic, which all nodes share: every node holds what waits, the one
that leads the topic publishes what is due and removes it.

A node that comes to lead reads the topic to its end, waits until no other node has a publish under
way, and looks in the bound topics for what was published and not removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from lakemq.broker_core.api.cluster.channels import Channel, ChannelEvents, Peer
from lakemq.broker_core.api.errors import LakeMQError, Unavailable, UnknownPartition, UnknownTopic
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.batch import CONTROL, split
from lakemq.broker_core.api.state.followed import FollowedRecord, FollowedTopic
from lakemq.broker_core.api.state.internal_topics import DELAYED as TOPIC
from lakemq.broker_core.api.state.residents import Residents
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.types import Acks, CommittedBatch, Offset
from lakemq.plugins.mqtt.feeds.reading import Salvage
from lakemq.plugins.mqtt.routing.delayed import Delayed
from lakemq.plugins.mqtt.routing.delaying import (
    POSITIONS_KEY,
    heard,
    positions_to_keep,
    release_removed,
    scan_from,
)
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.state.records import RecordReader
from lakemq.plugins.mqtt.state.sessions import Positions
from lakemq.plugins.mqtt.state.snapshots import positions_bytes
from lakemq.plugins.mqtt.wire.messages import Place

_log: Final = logging.getLogger(__name__)
CHANNEL: Final = "mqtt.delayed"
START_WAIT_S: Final = 10.0
"""How long a start waits at most for publishes that this node has."""
READ_BYTES: Final = 1024 * 1024
REACH_S: Final = 2.5
"""Longer than it takes to notice that the topic's leader is gone, and to have another one."""
_ASK_S: Final = 1.0
_UNREACHED_S: Final = 1.0
"""How long a new leader waits for a live node that it does not reach, or that is of an older build
and has its own publishes."""
_LOOK_S: Final = 0.02
_AGAIN_S: Final = 1.0


class Found(NamedTuple):
    """What a node that comes to lead has found out."""

    published: set[str]
    """Keys of publishes that are stored under their names."""
    ends: Positions
    """Up to where it has looked."""
    unread: Positions
    """Partitions that it could not read, and where it has to begin there."""


class DelayLog(ChannelEvents):
    """Topic `__mqtt_delayed`: one record for each publish that waits. Implements `Follower` and
    `Resident`. All methods run on the event loop."""

    def __init__(
        self,
        hub: Hub,
        broker: Broker,
        reader: RecordReader,
        now_ms: Callable[[], int],
        salvage: Salvage,
        after: Callable[[], None],
    ) -> None:
        """`after`: carries out what the hub wants done."""
        self._salvage = salvage
        self._hub = hub
        self._broker = broker
        self._reader = reader
        self._now_ms = now_ms
        self._after = after
        # The leader alone removes, and tells positions: what a node that leads no more believes to
        # be published must not count.
        self.topic = StateTopic(
            broker, TOPIC, acks=Acks.REPLICATED, now_ms=now_ms, open_stored=salvage.opened
        )
        self._followed = FollowedTopic(broker, TOPIC, self, open_stored=salvage.opened)
        self._residents = Residents(broker, self.topic, self)
        self._channel: Channel | None = None
        self._unwatch: Callable[[], None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._ends: Positions = {}
        self._term = 0
        """Counts the times at which this node has begun to lead, or has ended."""
        self._written_at = 0
        self._writing = False
        self._failed = False
        """The last append failed: the next one waits for a checkpoint."""

    # -- life

    async def read(self) -> None:
        """Know all publishes that wait, where this node has them. Sessions must be there already:
        they learn which of their QoS 2 publishes are in this topic."""
        self._hub.delays.leads = self._hub.delays.ready = False
        await self.topic.ensure()
        here = self._broker.serves(TOPIC, 0)
        await self._followed.start(START_WAIT_S if here else 0)

    async def begin(self) -> None:
        """Bound topics were read: publish what is due, if this node leads the topic."""
        self._hub.delays.may_publish = partial(self._residents.serves, 0)
        self._channel = self._broker.channel(CHANNEL, self)
        await self._residents.start()

    async def stop(self) -> None:
        """Follow no more, and publish nothing more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._residents.stop()
        if self._channel is not None:
            self._channel.close()
        await self._followed.stop()

    async def reach(self) -> None:
        """Until this node knows what waits now, `REACH_S` at most: a session that comes without its
        owner's word may have had a publish delayed at that moment."""
        with suppress(LakeMQError, TimeoutError):
            async with asyncio.timeout(REACH_S):
                await self._until_heard(await self._broker.reader(TOPIC, 0).log_end())

    async def _until_heard(self, end: int) -> None:
        while self._followed.offset < end:  # noqa: ASYNC110 - one look at an attribute
            await asyncio.sleep(_LOOK_S)

    # -- follower

    def restore(self, newest: Sequence[FollowedRecord]) -> None:
        """See `Follower`."""
        delays, keys = self._hub.delays, {record.key for record in newest}
        for one in list(delays):
            if one.stored and one.key.encode() not in keys:
                delays.gone(one.key)
        self._take(newest, recovering=True)

    def take(self, records: Sequence[FollowedRecord]) -> None:
        """See `Follower`."""
        self._take(records, recovering=False)

    def _take(self, records: Sequence[FollowedRecord], *, recovering: bool) -> None:
        for offset, key, value, headers in records:
            try:
                heard(self._hub, offset, key, value, headers, recovering=recovering)
            except ValueError as error:
                self._salvage.refused(Place(TOPIC, 0, offset), error)

    # -- resident

    async def load(self, partition: int, end: int) -> Found:
        """As `Resident.load`: find out what is published already."""
        await self._until_heard(end)
        await self._until_settled()
        found = Found(set(), {}, {})
        await asyncio.gather(*(self._look(key, found) for key in list(self._hub.positions)))
        return found

    def serve(self, partition: int, epoch: int, state: Found) -> None:
        """As `Resident.serve`."""
        self._term += 1
        self._ends = state.ends
        self._hub.delays.lead(state.published, state.unread)
        self._failed = False
        if not self._writing:
            self._write(self._after)
        if state.unread:
            self._looking = asyncio.create_task(self._look_again(self._term))

    def drop(self, partition: int) -> None:
        """As `Resident.drop`."""
        self._term += 1
        self._hub.delays.yield_lead()

    # -- what was published before

    async def _until_settled(self) -> None:
        """Until no live node has a publish under way: one that led before may still be answered."""
        loop, me = asyncio.get_running_loop(), self._broker.node_id
        patience_s = loop.time() + _UNREACHED_S
        settled = {me}
        while True:
            waiting = {
                one.node_id
                for one in self._broker.nodes()
                if one.state in ("active", "draining") and one.node_id not in settled
            }
            reached = set(self._channel.nodes()) if self._channel is not None else set()
            if loop.time() > patience_s:
                waiting &= reached
            if not waiting and not self._hub.delays.under_way:
                return
            for node in sorted(waiting & reached):
                with suppress(LakeMQError):
                    await self._ask(node)
                    settled.add(node)
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, node: str) -> None:
        if self._channel is not None:
            await self._channel.request(node, b"", _ASK_S)

    async def request(self, peer: Peer, payload: bytes) -> bytes:
        """Another node has come to lead: whether this one has nothing under way. Raises
        Unavailable: it is asked again."""
        delays = self._hub.delays
        if delays.under_way or (delays.leads and delays.may_publish()):
            raise Unavailable("delayed publishes of this node are still under way; ask again")
        return b""

    async def _look(self, key: tuple[str, int], found: Found) -> None:
        """Find what of this partition is published."""
        start = scan_from(self._hub, key, 2**63 - 1)
        try:
            reader = self._broker.reader(*key)
            end = await reader.log_end()
            offset = Offset(max(min(start, end), (await reader.bounds())[0]))
            while offset < end:
                # What is not committed yet may be one of them, or may never be there.
                got = await reader.fetch(offset, bytes_max=READ_BYTES, wait_ms=1000)
                for position, header in split(got.data):
                    if header.attributes & CONTROL:
                        continue
                    data = got.data[position : position + header.total_bytes]
                    batch = CommittedBatch(*key, Offset(header.base_offset), data)
                    found.published.update(self._keys(batch))
                if got.next_offset == offset:
                    end = await reader.log_end()
                offset = got.next_offset
        except (UnknownTopic, UnknownPartition):
            return  # it was deleted, with what was published
        except LakeMQError as error:
            if start < 2**63 - 1 and self._hub.delays:
                found.unread[key] = start
            _log.warning("delayed publishes to %s/%d wait until it can be read: %s", *key, error)
            return
        found.ends[key] = end

    def _keys(self, batch: CommittedBatch) -> list[str]:
        # `heard`: names are of no interest, only what the broker itself has noted.
        read = self._salvage.messages(self._reader, batch, lambda name: False)
        return [meta.delayed_id for _, meta in read if meta.delayed_id is not None]

    async def _look_again(self, term: int) -> None:
        """Read what could not be read, until this node leads no more."""
        delays = self._hub.delays
        while self._term == term and delays.unread:
            await asyncio.sleep(_AGAIN_S)
            for key in list(delays.unread):
                found = Found(set(), {}, {})
                await self._look(key, found)
                if self._term != term:
                    return
                if key in found.unread:
                    continue
                for each in found.published:
                    delays.end(each)
                self._ends |= found.ends
                delays.unread.pop(key, None)
                self._after()

    # -- removal

    @property
    def due(self) -> bool:
        """Whether an append can and should begin."""
        return self._hub.delays.unkept and not self._writing and not self._failed

    def write(self, after: Callable[[], None]) -> None:
        """Remove what was published, if anything was and no removal is under way."""
        if self.due:
            self._write(after)

    def checkpoint(self, records_max: int) -> None:
        """Keep how far the bound topics need not be read again, when that has grown much."""
        self._failed = False
        delays = self._hub.delays
        behind = self._hub.delivered - self._written_at
        old = bool(delays) and behind > records_max
        if delays.leads and not self._writing and (old or not delays.ready):
            self._write(lambda: None)

    def _write(self, after: Callable[[], None]) -> None:
        """All removals in one append with the positions, so that these are never kept without the
        removals below them."""
        hub, delays = self._hub, self._hub.delays
        removing = delays.begin_removal()
        leaving = delays.take_leaving()  # their removals are among these
        positions = positions_to_keep(hub, self._ends)
        entries: dict[bytes, bytes | None] = {key.encode(): None for key in removing}
        entries[POSITIONS_KEY] = positions_bytes(positions)
        self._writing = True
        done = partial(self._written, self._term, leaving, positions, hub.delivered, after)
        self.topic.write_all(entries, done)

    def _written(
        self,
        term: int,
        leaving: list[Delayed],
        positions: Positions,
        delivered: int,
        after: Callable[[], None],
        error: LakeMQError | None,
    ) -> None:
        self._writing = False
        delays = self._hub.delays
        if term == self._term:  # else another node has them
            delays.removal_ended(leaving, failed=error is not None)
            self._failed = error is not None
        if error is not None:
            _log.error("delayed publishes could not be removed yet: %s", error)
        else:
            if term == self._term:
                self._written_at = delivered
                delays.kept_positions, delays.ready = positions, True
            release_removed(self._hub, leaving, self._now_ms())
        after()
