"""An owner while the node runs, and the task that applies its newest commit."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.transactions.types import Owner, OwnerStatus
from lakemq.broker_core.api.types import AppendResult
from lakemq.broker_core.transactions.applier import Applier, ReadBatch
from lakemq.broker_core.transactions.participants import Participants
from lakemq.broker_core.transactions.state import CommitTarget, OwnerState, applied, progressed
from lakemq.broker_core.transactions.targets import Targets

_log = logging.getLogger(__name__)
_PAUSE_FIRST_MS: Final = 50
_PAUSE_MAX_MS: Final = 5_000
_rng: Final = random.Random()


def _backoff() -> Backoff:
    return Backoff(_PAUSE_FIRST_MS, _PAUSE_MAX_MS, _rng.random)


class OwnerRuntime:
    """What this node knows of one owner."""

    def __init__(self, known: OwnerState | None, offset: int = -1) -> None:
        self.known = known
        """`None` while it is being opened for the first time."""
        self.offset = offset
        """Of the record that holds `known`, or one below; -1: there is none."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """That change it."""
        self.in_doubt = False
        """A newer state than `known` may be on disk."""
        self.ended = False
        """Another node acts for it, or may."""
        self.lock = asyncio.Lock()
        self.detail = ""
        self.delivering: set[str] = set()
        """Ids of the schedules being delivered, when the owner is a scheduler."""
        self._applied = asyncio.Event()
        self._applied.set()

    @property
    def state(self) -> OwnerState:
        """The durable state; only once the owner was opened."""
        assert self.known is not None
        return self.known

    @property
    def busy(self) -> bool:
        """Whether it is being opened, committed or applied, so that it must not expire now."""
        return self.known is None or self.lock.locked() or not self._applied.is_set()

    def begin(self) -> None:
        """A commit is decided and is being applied from now on."""
        self._applied.clear()

    def end(self) -> None:
        """Change it no more: it has another coordinator, or may have."""
        self.ended = True
        for task in self.tasks:
            task.cancel()
        self._applied.set()

    def finish(self) -> None:
        """The newest commit is applied: wake who waits for it."""
        self.known = applied(self.state)
        self.detail = ""
        self._applied.set()

    async def wait_applied(self, wait_s: float) -> bool:
        """Whether the newest commit is applied within that time, as far as this node knows."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._applied.wait()
        return self._applied.is_set() and not self.ended

    def waiting_effects(self) -> Sequence[tuple[str, bytes]]:
        """Of the commit that is being applied."""
        pending = self.known.pending if self.known else None
        return pending.effects if pending else ()

    def status(self, owner: Owner, batches: int, size_bytes: int) -> OwnerStatus:
        """What `describe` tells of the owner; sizes are those of what it has staged (bytes)."""
        state = self.state
        doing = "applying" if not self._applied.is_set() else "staging" if batches else "idle"
        return OwnerStatus(
            owner,
            state.epoch,
            state.last_batch_id,
            doing,
            batches,
            size_bytes,
            state.timeout_ms,
            self.detail,
        )


class States(Protocol):
    """Where states of owners are kept."""

    def append(self, owner: Owner, state: OwnerState | None) -> asyncio.Future[AppendResult]:
        """Done when it is on disk."""


class CommitRunner:
    """Applies the pending commit of an owner, retrying until it is done."""

    def __init__(
        self,
        owned: OwnerRuntime,
        broker: Broker,
        states: States,
        participants: Participants,
        on_appended: Callable[[int], None],
        read: ReadBatch,
        *,
        targets: Targets | None = None,
        persists_progress: bool = True,
    ) -> None:
        """`targets`: None: all partitions are this node's. `persists_progress`: whether targets
        that are done before the others are recorded, as transactions do; schedules are marked when
        all are done."""
        self._owned = owned
        self._states = states
        self._participants = participants
        self._persists_progress = persists_progress
        self._applier = Applier(broker, targets or Targets(broker), read, on_appended)

    async def run(self, owner: Owner, resumed: bool) -> None:
        """Returns when all records are appended and all effects are applied."""
        pending = self._owned.state.pending
        assert pending is not None
        # Beside the appends: an effect that waits for its participant must not hold the records up.
        effects = asyncio.ensure_future(self._apply_effects(owner, pending.effects))
        try:
            targets, backoff = list(pending.targets), _backoff()
            while targets:
                left, reason = await self._applier.apply(
                    self._owned.state, targets, resumed=resumed
                )
                if left:
                    self._log_delay(owner, reason)
                    await self._progress(owner, targets, left, effects.done())
                    await asyncio.sleep(backoff.next_s())
                # From the second attempt on some records may be there: an append that failed may
                # have reached the disk.
                targets, resumed = left, True
            await effects
        finally:
            effects.cancel()

    def _log_delay(self, owner: Owner, reason: LakeMQError | None) -> None:
        if str(reason) != self._owned.detail:
            self._owned.detail = str(reason)
            _log.warning("could not apply the commit of %s yet, trying again: %s", owner, reason)

    async def _progress(
        self,
        owner: Owner,
        before: list[CommitTarget],
        left: list[CommitTarget],
        effects_done: bool,
    ) -> None:
        """Record what is done, so that a restart need not look for it: by then its records may
        have been compacted away."""
        if len(left) == len(before) or not self._persists_progress:
            return
        self._owned.known = progressed(self._owned.state, left, effects_done)
        with suppress(LakeMQError):
            await self._states.append(owner, self._owned.state)

    async def _apply_effects(self, owner: Owner, effects: Sequence[tuple[str, bytes]]) -> None:
        for name, data in effects:
            backoff = _backoff()
            while True:
                try:
                    await self._participants.apply(name, data)
                    break
                except LakeMQError as error:
                    self._log_delay(owner, error)
                    await asyncio.sleep(backoff.next_s())
