"""Counts what topics with a ledger get, behind their logs: appends neither wait for it nor know it.

A loop looks every `look_ms` which partitions of this node have new records, fetches them, has them
decoded in a thread, and counts them. Devices and the offset up to which they are counted are stored
together, as one batch of the topic `__ledger`: after a crash counting goes on from there, so that
nothing is counted twice or left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import (
    LakeMQError,
    NotLeader,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from lakemq.broker_core.api.ports import Broker, PartitionLog
from lakemq.broker_core.api.records.ledger_rule import LedgerRule, ledger_rule
from lakemq.broker_core.api.state.state_topic import StateRecord, StateTopic
from lakemq.broker_core.api.types import Offset
from lakemq.plugins.ledger.config import LedgerSettings
from lakemq.plugins.ledger.device_table import DeviceTable, stored_rule
from lakemq.plugins.ledger.reading import readings

_log = logging.getLogger(__name__)

LEDGER_TOPIC: Final = "__ledger"
FETCH_BYTES: Final = 1024 * 1024
TURN_BYTES: Final = 4 * FETCH_BYTES
"""Of a partition that are read before the next one has its turn."""
CHANGED_MAX: Final = 4_000
"""Devices that may wait to be stored: what is stored at once stays a batch of about 2 MB."""
_STRIDE: Final = 250
"""Records that are counted before others have their turn, in about a millisecond."""
_SEEN_MAX: Final = 1_000


class Ledger(NamedTuple):
    """Of one partition."""

    topic: str
    topic_id: str
    partition: int
    table: DeviceTable

    def key(self, device: str | None = None) -> bytes:
        """Of a record in `__ledger`; None: of the partition itself."""
        place = f"{self.topic_id}/{self.partition}"
        return (place if device is None else f"{place}/{device}").encode()


class LedgerKeeper:
    """All ledgers of this node: of the partitions that it leads, or has led."""

    def __init__(
        self,
        broker: Broker,
        settings: LedgerSettings,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self.counted = 0
        """Records, in this life."""
        self.failures = 0
        """Turns that ended with an error, like a full disk; they are tried again."""
        self._broker = broker
        self.settings = settings
        self._now_s = now_s or (lambda: asyncio.get_running_loop().time())
        self._state = StateTopic(broker, LEDGER_TOPIC)
        self._ledgers: dict[tuple[str, int], Ledger] = {}
        self._stored_s: dict[tuple[str, int], float] = {}
        self._heads: dict[tuple[str, int], bytes] = {}
        """What is stored of partitions."""
        self._rules: dict[str, LedgerRule | None] = {}
        self._told: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    # -- life

    async def start(self) -> None:
        """Read what is stored, and count from there on. Raises what `StateTopic.load` does."""
        await self.load()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Store what was counted."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for ledger in self._ledgers.values():
            with suppress(LakeMQError):  # it is counted again at the next start
                await self._store(ledger)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.settings.look_ms / 1000)
            await self.look()

    # -- what is kept

    def ledgers(self) -> Iterator[Ledger]:
        """Of the partitions that this node leads now."""
        for ledger in list(self._ledgers.values()):
            with suppress(UnknownTopic):
                if self._broker.serves(ledger.topic, ledger.partition):
                    yield ledger

    async def load(self) -> None:
        """Take up what an earlier life stored; what no topic asks for any more is deleted."""
        stored = await self._state.load()
        names = {info.topic_id: info for info in self._broker.topics()}
        waste: list[bytes] = []
        for key in sorted(stored, key=lambda each: each.count(b"/") > 1):  # partitions come first
            topic_id, _, rest = key.decode(errors="replace").partition("/")
            number, _, device = rest.partition("/")
            info = names.get(topic_id)
            is_head = key.count(b"/") == 1
            if info is None or not self._restore(
                info.name, topic_id, number, stored[key], is_head=is_head
            ):
                waste.append(key)
        for ledger in self._ledgers.values():
            ledger.table.restored()
        with suppress(LakeMQError):  # a full disk does not end a start: the next one deletes it
            await self._delete(waste)

    def _restore(
        self, topic: str, topic_id: str, number: str, record: StateRecord, *, is_head: bool
    ) -> bool:
        """False: nothing asks for it any more."""
        value = record.value or b""
        text = self._broker.topic(topic).config.ledger
        try:
            place = topic_id, int(number)
            if is_head:
                rule = self._rule(text)
                if rule is None or stored_rule(value) != text:
                    return False
                table = DeviceTable(rule, text, self.settings.devices_max)
                table.restore_head(value)
                self._heads[place] = value
                self._ledgers[place] = Ledger(topic, topic_id, place[1], table)
            elif place in self._ledgers:
                self._ledgers[place].table.restore(value)
            else:
                return False
        except ValueError as error:
            self._state.skip(record, error)
            return False
        return True

    async def _delete(self, keys: list[bytes]) -> None:
        for start in range(0, len(keys), CHANGED_MAX):
            await self._state.write(dict.fromkeys(keys[start : start + CHANGED_MAX]))

    def _rule(self, text: str) -> LedgerRule | None:
        """None also for a rule of a newer version, which is logged."""
        if text not in self._rules:
            if len(self._rules) >= _SEEN_MAX:
                self._rules.clear()
            try:
                self._rules[text] = ledger_rule(text)
            except LakeMQError as error:
                self._rules[text] = None
                _log.error("no ledger is kept by %r: %s", text, error)
        return self._rules[text]

    # -- counting

    async def look(self) -> None:
        """Count what is new in all partitions, and store what is due. Never raises."""
        asked: dict[tuple[str, int], tuple[str, str, LedgerRule]] = {}
        for info in self._broker.topics():
            text = info.config.ledger
            rule = self._rule(text) if text else None
            if rule is not None:
                for number in range(info.partitions):
                    asked[info.topic_id, number] = info.name, text, rule
        for place, ledger in list(self._ledgers.items()):
            if place not in asked or asked[place][1] != ledger.table.rule_text:
                await self._guarded(ledger.topic, self._forget(place))
        for (topic_id, number), (topic, text, rule) in asked.items():
            await self._guarded(topic, self._turn(topic, topic_id, number, text, rule))

    async def _guarded(self, topic: str, turn: Coroutine[None, None, None]) -> None:
        try:
            await turn
        except (NotLeader, UnknownTopic, UnknownPartition):
            pass  # another node counts, or the topic is gone
        except Exception as error:  # what one partition does must not end the count of the others
            self.failures += 1
            if topic not in self._told:
                self._told.add(topic)
                _log.error("ledger of topic %s: %r; it is tried again", topic, error)
        else:
            self._told.discard(topic)

    async def _forget(self, place: tuple[str, int]) -> None:
        ledger = self._ledgers[place]
        await self._delete([ledger.key(), *map(ledger.key, ledger.table.devices)])
        for kept in (self._ledgers, self._stored_s, self._heads):
            kept.pop(place, None)

    async def _turn(
        self, topic: str, topic_id: str, number: int, text: str, rule: LedgerRule
    ) -> None:
        log = self._broker.partition(topic, number)
        place = topic_id, number
        ledger = self._ledgers.get(place)
        if ledger is None:
            table = DeviceTable(rule, text, self.settings.devices_max)
            table.position = log.high_watermark if rule.from_latest else log.log_start_offset
            ledger = Ledger(topic, topic_id, number, table)
            # Stored at once: where counting began is never decided again.
            await self._store(ledger)
            self._ledgers[place] = ledger
        await self._count(ledger, log)
        waited_s = self._now_s() - self._stored_s.get(place, 0.0)
        if waited_s >= self.settings.checkpoint_ms / 1000:
            await self._store(ledger)

    async def _count(self, ledger: Ledger, log: PartitionLog) -> None:
        """What is new, a turn's bytes at most."""
        table, left = ledger.table, TURN_BYTES
        while left > 0 and table.position < log.high_watermark:
            if table.position < log.log_start_offset:
                table.skip_to(log.log_start_offset)
                continue
            start = table.position
            try:
                got = await log.fetch(Offset(start), bytes_max=FETCH_BYTES)
            except OffsetOutOfRange:
                if log.log_start_offset <= start:
                    raise
                continue  # retention was quicker
            found = await asyncio.to_thread(
                readings, table.rule, got.data, ledger.topic, ledger.partition, start
            )
            for index, reading in enumerate(found):
                if index % _STRIDE == 0:
                    await asyncio.sleep(0)
                    if len(table.changed) >= CHANGED_MAX:
                        await self._store(ledger)
                table.take(reading)
                self.counted += 1
            if got.next_offset <= start:
                return
            table.position = got.next_offset  # behind markers, and batches that can't be read
            left -= len(got.data)

    async def _store(self, ledger: Ledger) -> None:
        """Devices and position together, if there is anything new. Raises LakeMQError."""
        table, place = ledger.table, (ledger.topic_id, ledger.partition)
        head = table.stored_head(ledger.topic, ledger.partition)
        if head == self._heads.get(place):
            return
        await self._state.ensure()
        entries = {
            ledger.key(name): table.stored(name, ledger.topic, ledger.partition)
            for name in table.changed
        }
        await self._state.write({**entries, ledger.key(): head})
        table.changed.clear()
        self._heads[place] = head
        self._stored_s[place] = self._now_s()
