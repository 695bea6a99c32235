"""What this node does as the home of clients: the edge around `HomeTable`.

State lives where its partition of `__mqtt_homes` is led. Claims wait for owners to let go; what is
kept is appended here, and answered when it is on the disks of all in-sync replicas.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import LakeMQError, Unavailable
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.state.residents import Residents
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.types import Acks
from lakemq.plugins.mqtt.homes import frames
from lakemq.plugins.mqtt.homes.frames import Asked, Code, Kind, Outcome, Record, Saved
from lakemq.plugins.mqtt.homes.table import (
    GATHER_MS,
    LET_GO_MS,
    NOT_KEPT,
    UNKEPT_MS,
    Ask,
    Claim,
    Entry,
    Granted,
    HomeTable,
    Known,
    Owned,
    Owner,
    Unused,
)
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot

_log: Final = logging.getLogger(__name__)
TOPIC: Final = "__mqtt_homes"
PARTITIONS: Final = 32
ADOPTED_AT_ONCE: Final = 500
"""Sessions of nodes that are gone that one partition takes in a second."""
_ASK_AGAIN_FIRST_MS: Final = 20
_ASK_AGAIN_MAX_MS: Final = 1_000
_ANSWER_S: Final = 1.5 * LET_GO_MS / 1000
"""What is not decided by then of some claims is to be claimed again: others do not wait for it."""
_OWNED_S: Final = 1.0
_UNREACHED_MS: Final = 1_000
"""How long a new home waits for a node that it does not reach, and that may be alive."""
_ASKS_MAX: Final = 30
"""How often an owner that does not answer is told to let go."""

_rng: Final = random.Random()
_Answer = TypeVar("_Answer")

Question = Callable[[str, bytes, float], Awaitable[bytes]]
"""Asks a node, this one too: node, request, seconds."""


class _Place:
    """One partition that this node is the home of."""

    def __init__(self, table: HomeTable) -> None:
        self.table = table
        self.waiting: dict[int, asyncio.Future[Outcome]] = {}
        """By number of the claim."""
        self.serving = asyncio.Event()


class Home:
    """All clients whose partition this node leads. Lives on the event loop."""

    def __init__(
        self,
        broker: Broker,
        ask: Question,
        reaches: Callable[[str], bool],
        begin: Callable[[Coroutine[Any, Any, None]], object],
        sessions_max: int,
    ) -> None:
        """`begin` runs a task until the plugin stops."""
        # Whatever `[topics]` sets: what a client was promised must not be taken back by a failover.
        self.topic = StateTopic(
            broker, TOPIC, partitions=PARTITIONS, acks=Acks.REPLICATED, large_values=True
        )
        self._broker = broker
        self._ask = ask
        self._reaches = reaches
        self._begin = begin
        self._sessions_max = sessions_max
        self._residents = Residents(broker, self.topic, self)
        self._places: dict[int, _Place] = {}

    async def start(self) -> None:
        """Read what this node leads, then follow what it leads."""
        await self._residents.start()

    async def stop(self) -> None:
        """Answer no more."""
        await self._residents.stop()

    def partition_of(self, client_id: str) -> int:
        """Raises UnknownTopic."""
        return self.topic.partition_of(client_id.encode())

    # -- partitions that come and go

    async def load(self, partition: int, end: int) -> HomeTable:
        """As `Resident.load`."""
        table = HomeTable(self._sessions_max)
        async for record in self.topic.records_of(partition, end):
            try:
                table.restore(record.key.decode(), _entry(record.value, record.offset))
            except ValueError as error:
                self.topic.skip(record, error)
        return table

    def serve(self, partition: int, epoch: int, state: HomeTable) -> None:
        """As `Resident.serve`: nodes are asked first what they own."""
        place = self._places[partition] = _Place(state)
        for node in sorted(state.gather(epoch, self._lives(), _now_ms())):
            self._begin(self._gather(partition, place, node))
        self._look(place)
        self._later(GATHER_MS, place)

    def drop(self, partition: int) -> None:
        """As `Resident.drop`."""
        place = self._places.pop(partition, None)
        for future in place.waiting.values() if place is not None else ():
            if not future.done():
                future.set_result(Outcome(Code.FAILED))

    def _lives(self) -> dict[str, int]:
        """Broker epochs of nodes whose word counts."""
        return {
            one.node_id: one.broker_epoch
            for one in self._broker.nodes()
            if one.state in ("active", "draining") and one.broker_epoch
        }

    def owner(self) -> Owner:
        """This node. Raises Unavailable before it is known to be registered."""
        return self._alive(self._broker.node_id)

    def _alive(self, node: str, life: int = 0) -> Owner:
        known = self._lives().get(node, 0)
        if not known or life > known:
            raise Unavailable(f"node {node} is not known to be active yet; try again")
        if 0 < life < known:
            raise Unavailable(f"node {node} has registered again since; try again")
        return Owner(node, known)

    async def _gather(self, partition: int, place: _Place, node: str) -> None:
        """Ask a node what it owns, and tell it what of that is another's."""
        page = pages = 0
        patience_ms = _now_ms() + _UNREACHED_MS
        while self._places.get(partition) is place and not place.serving.is_set():
            try:
                asked = frames.owned_request(partition, page, pages)
                answer = await self._ask(node, asked, _OWNED_S)
                pages, rows = frames.read_owned(answer)
                known = place.table.owns(self._alive(node), rows)
                self._carry_out(place)
                if any(one.epoch != one.told for one in known):
                    told = frames.known_bytes(known, Kind.KNOWN)
                    await self._ask(node, told, _OWNED_S)
                page += 1
            except (LakeMQError, BadSnapshot) as error:
                _log.info("%s does not say yet which sessions it has: %s", node, error)
                if not self._reaches(node) and _now_ms() > patience_ms:
                    place.table.told(node)
                    break
                await asyncio.sleep(0.1)
            if page and page >= pages:
                place.table.told(node)
                break
        self._look(place)

    def _look(self, place: _Place) -> None:
        if place.table.serving(_now_ms()):
            place.serving.set()

    def _later(self, delay_ms: int, place: _Place) -> None:
        def look() -> None:
            self._look(place)
            place.table.tick(_now_ms())
            self._carry_out(place)

        asyncio.get_running_loop().call_later(delay_ms / 1000 + 0.005, look)

    async def _arrive(self, partition: int) -> _Place:
        """The partition, once it answers. Raises NotLeader, Unavailable."""
        await self._residents.arrive(partition)
        place = self._places[partition]
        if not place.serving.is_set():
            async with asyncio.timeout(1.5 * GATHER_MS / 1000):
                await place.serving.wait()
        self._residents.check(partition)
        return place

    # -- claims

    async def claim(self, node: str, life: int, data: bytes) -> bytes:
        """Answer claims of a node. Raises BadSnapshot, Unavailable."""
        claims = frames.read_claims(self._alive(node, life), data)
        by_partition: dict[int, list[int]] = {}
        for index, one in enumerate(claims):
            by_partition.setdefault(self.partition_of(one.client_id), []).append(index)
        outcomes = [Outcome(Code.FAILED)] * len(claims)

        async def answer(partition: int, indexes: list[int]) -> None:
            found = await self._claim(partition, [claims[each] for each in indexes])
            for index, outcome in zip(indexes, found, strict=True):
                outcomes[index] = outcome

        await asyncio.gather(*(answer(*each) for each in by_partition.items()))
        return frames.outcomes_bytes(outcomes)

    async def _claim(self, partition: int, claims: Sequence[Claim]) -> list[Outcome]:
        try:
            place = await self._arrive(partition)
        except (LakeMQError, TimeoutError):
            return [Outcome(Code.FAILED)] * len(claims)
        loop, now_ms, futures = asyncio.get_running_loop(), _now_ms(), []
        for one in claims:
            future: asyncio.Future[Outcome] = loop.create_future()
            place.waiting[place.table.claim(one, now_ms)] = future
            futures.append(future)
        self._carry_out(place)
        done, _ = await asyncio.wait(futures, timeout=_ANSWER_S)
        return [each.result() if each in done else Outcome(Code.FAILED) for each in futures]

    def _carry_out(self, place: _Place) -> None:
        """Do what the table has decided."""
        asks: dict[str, list[Ask]] = {}
        unused: dict[Owner, list[Known]] = {}
        for one in place.table.take():
            if isinstance(one, Ask):
                asks.setdefault(one.owner.node, []).append(one)
                continue
            if isinstance(one, Unused):
                unused.setdefault(one.owner, []).append(Known(one.client_id, one.epoch, 0))
                continue
            future = place.waiting.pop(one.number, None)
            if future is None or future.done():
                continue
            if not isinstance(one, Granted):
                future.set_result(Outcome(frames.REFUSALS[one.why]))
            elif one.here or one.state is not None or one.offset == NOT_KEPT:
                kept, state = one.offset != NOT_KEPT, one.state or None
                future.set_result(Outcome(Code.DONE, one.epoch, kept, one.here, state))
            else:
                self._begin(self._read(one, future))
        for some in asks.values():
            self._begin(self._let_go(place, some))
            self._later(LET_GO_MS, place)
            self._later(UNKEPT_MS, place)
        for owner, known in unused.items():
            self._begin(self._tell_unused(owner, known))

    async def _read(self, granted: Granted, future: asyncio.Future[Outcome]) -> None:
        """Answer with what is kept of the session."""
        try:
            partition = self.partition_of(granted.client_id)
            value = await self.topic.value_at(partition, granted.offset)
            state = frames.read_record(value).state
            outcome = Outcome(Code.DONE, granted.epoch, True, False, state, unclean=True)
        except (LakeMQError, BadSnapshot) as error:
            _log.error("session of %r: its record can't be read: %s", granted.client_id, error)
            # The client asks again. Its session stays this node's meanwhile, and is read again.
            outcome = Outcome(Code.FAILED)
        if not future.done():
            future.set_result(outcome)

    async def _let_go(self, place: _Place, asks: Sequence[Ask]) -> None:
        """Have their owner let go of sessions. It is told again and again: its connections must
        end, though the sessions be granted by then."""
        owner = asks[0].owner
        asked = frames.asks_bytes([Asked(one.client_id, one.epoch, one.ends) for one in asks])
        found = await self._insist(owner, asked, lambda data: frames.read_states(data, len(asks)))
        unused: list[Known] = []
        for one, state in zip(asks, found or [None] * len(asks), strict=True):
            if not place.table.let_go(one.client_id, one.epoch, state) and state:
                unused.append(Known(one.client_id, one.epoch, 0))
        self._carry_out(place)
        await self._tell_unused(owner, unused)

    async def _tell_unused(self, owner: Owner, known: Sequence[Known]) -> None:
        """States that a node handed over in these epochs went nowhere."""
        for start in range(0, len(known), frames.ROWS_MAX):
            some = known[start : start + frames.ROWS_MAX]
            await self._insist(owner, frames.known_bytes(some, Kind.KNOWN), bool)

    async def _insist(
        self, owner: Owner, asked: bytes, read: Callable[[bytes], _Answer]
    ) -> _Answer | None:
        """Ask a node again and again while it lives on; None: it gives no answer."""
        backoff = Backoff(_ASK_AGAIN_FIRST_MS, _ASK_AGAIN_MAX_MS, _rng.random)
        for _ in range(_ASKS_MAX):
            if self._lives().get(owner.node) != owner.life:
                break
            try:
                return read(await self._ask(owner.node, asked, 2 * LET_GO_MS / 1000))
            except (LakeMQError, BadSnapshot) as error:
                _log.info("%s does not answer about its sessions yet: %s", owner.node, error)
                await asyncio.sleep(backoff.next_s())
        return None

    # -- what is kept

    async def save(self, node: str, data: bytes) -> bytes:
        """Keep sessions of a node. Raises BadSnapshot."""
        rows = frames.read_saves(data)
        by_partition: dict[int, list[int]] = {}
        for index, one in enumerate(rows):
            by_partition.setdefault(self.partition_of(one.client_id), []).append(index)
        codes = [Code.FAILED] * len(rows)

        async def keep(partition: int, indexes: list[int]) -> None:
            found = await self._save(partition, node, [rows[each] for each in indexes])
            for index, code in zip(indexes, found, strict=True):
                codes[index] = code

        await asyncio.gather(*(keep(*each) for each in by_partition.items()))
        return frames.codes_bytes(codes)

    async def _save(self, partition: int, node: str, rows: Sequence[Saved]) -> list[Code]:
        try:
            place = await self._arrive(partition)
            owned, entries = self._begin_writes(place.table, node, rows)
            result = await self.topic.write(entries, partition=partition) if entries else None
            self._residents.check(partition)
        except (LakeMQError, TimeoutError) as error:
            _log.info("%s/%d keeps no sessions now: %s", TOPIC, partition, error)
            return [Code.FAILED] * len(rows)
        table = place.table
        offsets = {key.decode(): index for index, key in enumerate(entries)}
        codes = []
        for one in rows:
            if one.client_id in offsets and result is not None:
                offset = result.base_offset + offsets[one.client_id]
                kept = offset if one.state else NOT_KEPT
                table.written(one.client_id, one.epoch, kept, one.urgent)
            if one.client_id not in owned or not table.owned_by(one.client_id, one.epoch, node):
                codes.append(Code.STALE)
                continue
            if not one.alive:
                table.ended(one.client_id, one.epoch, node)
            codes.append(Code.DONE)
        return codes

    def _begin_writes(
        self, table: HomeTable, node: str, rows: Sequence[Saved]
    ) -> tuple[set[str], dict[bytes, bytes | None]]:
        """Clients whose session the node owns, and what is to be appended."""
        owned: set[str] = set()
        entries: dict[bytes, bytes | None] = {}
        for one in rows:
            if not table.begin_write(one.client_id, one.epoch, node, one.number):
                continue
            owned.add(one.client_id)
            entry = table.entries[one.client_id]
            if one.state is not None:
                record = Record(one.epoch, entry.owner, entry.user, one.urgent, one.state)
                entries[one.client_id.encode()] = frames.record_bytes(record)
            elif entry.offset != NOT_KEPT:
                entries[one.client_id.encode()] = None
        return owned, entries

    # -- what nodes own

    async def announced(self, node: str, life: int, data: bytes) -> bytes:
        """A node says what it owns. Raises BadSnapshot, Unavailable; NotLeader for rows of a
        partition that is led elsewhere."""
        owner = self._alive(node, life)
        _, rows = frames.read_owned(data)
        known: list[Known] = []
        by_partition: dict[int, list[Owned]] = {}
        for one in rows:
            by_partition.setdefault(self.partition_of(one.client_id), []).append(one)
        for partition, some in by_partition.items():
            try:
                place = await self._arrive(partition)
            except (LakeMQError, TimeoutError):
                continue  # it is announced again
            known += place.table.owns(owner, some)
            self._carry_out(place)
        return frames.known_bytes(known)

    async def offered(self, node: str, data: bytes) -> dict[str, asyncio.Future[Outcome]]:
        """A node that is drained gives up sessions of clients that are away: as `orphans`. Raises
        BadSnapshot, Unavailable."""
        found: dict[str, asyncio.Future[Outcome]] = {}
        owner = self.owner()
        if node == owner.node:
            return found
        for client_id, epoch in frames.read_offer(data):
            with suppress(LakeMQError, TimeoutError):
                place = await self._arrive(self.partition_of(client_id))
                if not place.table.owned_by(client_id, epoch, node):
                    continue
                number = place.table.relieve(client_id, epoch, owner, _now_ms())
                if number is not None:
                    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
                    found[client_id] = place.waiting[number] = future
                    self._carry_out(place)
        return found

    # -- nodes that come and go

    def nodes_changed(self) -> None:
        """Look who is alive."""
        lives = self._lives()
        for place in self._places.values():
            place.table.nodes(lives, _now_ms())
            self._look(place)
            self._carry_out(place)

    def orphans(self) -> dict[str, asyncio.Future[Outcome]]:
        """Take sessions whose node is gone for this node: client id -> the outcome to come."""
        found: dict[str, asyncio.Future[Outcome]] = {}
        try:
            owner = self.owner()
        except Unavailable:
            return {}
        for partition, place in self._places.items():
            if not place.serving.is_set() or not self._residents.serves(partition):
                continue
            for client_id in place.table.orphans(_now_ms(), ADOPTED_AT_ONCE):
                future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
                place.waiting[place.table.adopt(client_id, owner)] = future
                found[client_id] = future
            self._carry_out(place)
        return found


def _entry(value: bytes | None, offset: int) -> Entry | None:
    if value is None:
        return None
    record = frames.read_record(value)
    return Entry(record.epoch, record.owner, record.user, record.urgent, offset)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
