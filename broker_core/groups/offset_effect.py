"""Offsets that are committed with a transaction: the participant of commits, at the edge.

A group's offsets are the matter of its coordinator, which may be another node than that of the
transaction. It holds them (`held_offsets`) from `prepare` on, in the topic of offsets too where
another node could take the group over, until it hears how the transaction has ended; or asks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.groups.types import GroupCommit, OffsetToCommit
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.transactions.types import CommitTry
from lakemq.broker_core.api.types import Principal, TopicPartition
from lakemq.broker_core.groups.asked_offsets import decode_asked, encode_asked
from lakemq.broker_core.groups.held_offsets import (
    HeldOffsets,
    decode_held,
    encode_held,
    held_key,
    still_due,
)
from lakemq.broker_core.groups.offset_log import OffsetLog
from lakemq.broker_core.groups.offset_table import Committed, encode_entries

OFFSETS: Final = "offsets"
"""Name under which offsets take part in commits."""
_ASK_AFTER_MS: Final = 1_500
"""A transaction that is held for so long, as its coordinator or the way to it is gone, is asked
for; and again."""
_LOOK_S: Final = 0.5
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OffsetsAsked:
    """Offsets to commit with a transaction."""

    commit: GroupCommit
    principal: Principal


class Groups(Protocol):
    """The consumer groups of a node, as far as transactions commit their offsets."""

    async def arrive(self, name: str) -> None:
        """Raises NotLeader where another node coordinates the group; Unavailable while this one
        takes it over, after a while."""

    def is_here(self, name: str) -> bool:
        """Whether this node coordinates the group, and has taken it over."""

    @property
    def offsets(self) -> OffsetLog:
        """Offsets that are committed, and held."""

    def authorize_commit(self, commit: GroupCommit, principal: Principal) -> None:
        """Raises NotAuthorized, InvalidRequest."""

    def checked(self, commit: GroupCommit) -> tuple[int, dict[TopicPartition, OffsetToCommit]]:
        """Member epoch and offsets of a commit that may be taken. Raises the LakeMQError that
        refuses it."""

    def withdraw(self, name: str, places: Iterable[TopicPartition], member_id: str) -> None:
        """Offsets that the table showed for a moment were not committed after all."""


class OffsetsParticipant:
    """Implements the `Participant` port."""

    def __init__(self, broker: Broker, host: Groups) -> None:
        self._broker = broker
        self._host = host
        self._asking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Ask for transactions that are held for long."""
        self._asking = asyncio.create_task(self._ask_again())

    async def stop(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            with suppress(asyncio.CancelledError):
                await self._asking

    # -- the port

    def encode(self, asked: object) -> bytes:
        """As `encode_asked`. Raises what that and `Groups.authorize_commit` raise."""
        assert isinstance(asked, OffsetsAsked)
        self._host.authorize_commit(asked.commit, asked.principal)
        return encode_asked(asked.commit)

    async def prepare(self, commit: CommitTry, asked: bytes) -> bytes:
        """Hold the offsets. Raises what `Groups.arrive` and `Groups.checked` raise."""
        request = decode_asked(asked)
        group = request.group
        await self._host.arrive(group)
        log = self._host.offsets
        log.held.check_try(group, commit)
        former = log.held.find(group, commit.owner)
        if former is not None and former.commit == commit:
            return encode_held(former)
        if former is not None:
            await self._give_up(former, request.member_id)
        epoch, offsets = self._host.checked(request)
        after = log.changes(group, epoch, offsets)
        now = log.table.of(group)
        held = HeldOffsets(group, {each: (now.get(each), after[each]) for each in after}, commit)
        # Where no other node may take the group over, the table is all there is to tell.
        stored = len(self._broker.nodes()) > 1
        log.held.hold(held, _now_ms(), stored=stored)
        data = encode_held(held)
        if stored:
            # Should it fail, they stay held until the coordinator says that they are void: the
            # record may be there all the same.
            await log.write_entries(group, {held_key(group, commit.owner): data})
        return data

    async def undo(self, data: bytes) -> None:
        """Give the offsets up, if they are held."""
        held = await self._held(data)
        if held is not None:
            await self._give_up(held, "")

    def restore(self, data: bytes) -> None:
        """Offsets of a decided transaction are in force before members join, or commit."""
        found = decode_held(data)
        if self._host.is_here(found.group):
            self._due(found)

    async def apply(self, data: bytes) -> None:
        """Make the offsets of a decided transaction durable. NotLeader, Unavailable: later."""
        held = await self._held(data)
        found = held or decode_held(data)
        entries = encode_entries(found.group, self._due(found))
        if held is not None and held.commit is not None and self._host.offsets.held.is_stored(held):
            entries[held_key(held.group, held.commit.owner)] = None
        if entries:
            await self._host.offsets.write_entries(found.group, entries)
        if held is not None:
            self._host.offsets.held.release(held)

    # -- what is held

    async def _held(self, data: bytes) -> HeldOffsets | None:
        """What is held for the try that `data` is of. What is held for another try of the owner is
        left to be asked for."""
        found = decode_held(data)
        await self._host.arrive(found.group)
        if found.commit is None:
            return None
        held = self._host.offsets.held.find(found.group, found.commit.owner)
        return held if held is not None and held.commit == found.commit else None

    def _due(self, found: HeldOffsets) -> dict[TopicPartition, Committed | None]:
        """What is to be written; puts it into the table."""
        table = self._host.offsets.table
        due = still_due(found.changes, table.of(found.group))
        table.put(found.group, due)
        return due

    async def _give_up(self, held: HeldOffsets, member_id: str) -> None:
        """They are void. Held until that is written: a new coordinator would hold them again, and
        put them over what was committed since."""
        log = self._host.offsets
        assert held.commit is not None
        if log.held.is_stored(held):
            await log.write_entries(held.group, {held_key(held.group, held.commit.owner): None})
        if log.held.find(held.group, held.commit.owner) is held:
            self._host.withdraw(held.group, log.held.undo(held), member_id)

    async def _ask_again(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            now_ms = _now_ms()
            for held in self._host.offsets.held.due(now_ms - _ASK_AFTER_MS, now_ms):
                await self._ask(held)

    async def _ask(self, held: HeldOffsets) -> None:
        assert held.commit is not None
        try:
            if await self._broker.transactions.is_decided(held.commit):
                await self.apply(encode_held(held))
            else:
                await self.undo(encode_held(held))
        except LakeMQError as error:
            _log.info("group %s: what became of %s is not known yet: %s", held.group,
                      held.commit.owner, error)  # fmt: skip


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
