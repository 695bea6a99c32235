"""Time-outs of what is staged, and the disk that staged batches give back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.transactions.types import Owner, TransactionCounters
from lakemq.broker_core.transactions.formats import STAGED_TOPIC
from lakemq.broker_core.transactions.owner_log import OwnerLog
from lakemq.broker_core.transactions.owners import OwnerRuntime
from lakemq.broker_core.transactions.staged import StagedTable

_log: Final = logging.getLogger(__name__)
_STALL_MS: Final = 5_000


class Upkeep:
    """Of the owners that this node coordinates."""

    def __init__(
        self,
        owners: Mapping[Owner, OwnerRuntime],
        staged: StagedTable,
        log: OwnerLog,
        counters: TransactionCounters,
        steady_ms: Callable[[], int],
    ) -> None:
        self._owners = owners
        self._staged = staged
        self._log = log
        self._counters = counters
        self._steady_ms = steady_ms
        self._ticked_ms: int | None = None
        self._freed_at = -1
        self._looked_at = -1

    def expire(self) -> None:
        """Drop batches that were staged too long ago without a commit."""
        self._counters.waiting_bytes = self._staged.total_bytes
        now_ms = self._steady_ms()
        gap_ms = 0 if self._ticked_ms is None else now_ms - self._ticked_ms
        self._ticked_ms = now_ms
        # The process stood still: clients could not stage meanwhile, and are not to blame.
        if gap_ms > _STALL_MS:
            self._staged.extend_after_stall(gap_ms)
        timeouts = {
            owner: owned.known.timeout_ms for owner, owned in self._owners.items() if owned.known
        }
        for owner, batch_id in self._staged.expired(timeouts, now_ms):
            owned = self._owners.get(owner)
            # What is being committed or applied is needed, however old it is.
            if owned is None or not (owned.busy or batch_id <= owned.state.last_batch_id):
                self._counters.expired += 1
                self._staged.drop(owner, only=batch_id)

    async def free(self, partitions: Iterable[int]) -> None:
        """Give up what lies below all that is needed of these partitions, if anything was dropped
        since; to be called again and again."""
        dropped, before = self._staged.dropped, self._looked_at
        self._looked_at = dropped
        # States that lie below are written again: not for a few batches while more are dropped.
        worth = dropped - self._freed_at > len(self._owners) or dropped == before
        if dropped == self._freed_at or not worth:
            return
        self._freed_at = dropped
        for number in partitions:
            try:
                await self._free(number)
            except LakeMQError as error:
                _log.warning("%s-%d is not freed: %s", STAGED_TOPIC, number, error)

    async def _free(self, number: int) -> None:
        log = self._log.topic.log(number)
        # All of the same moment: what is staged from now on has an offset above the log's end.
        floor = min(self._lowest().get(number, log.high_watermark), log.high_watermark)
        moved = {}
        for owner, owned in self._owners.items():
            if self._log.partition_of(owner) != number or owned.offset < 0:
                continue
            if owned.busy:  # a newer state may be on its way, which one written now would follow
                floor = min(floor, owned.offset)
            else:
                moved[owner] = owned
        moved = {owner: owned for owner, owned in moved.items() if owned.offset < floor}
        if floor <= log.log_start_offset:
            return
        offsets = {owner: owned.offset for owner, owned in moved.items()}
        states = {owner: owned.state for owner, owned in moved.items()}
        first = await self._log.free(number, floor, states)
        for owner, owned in moved.items():
            if owned.offset == offsets[owner]:  # no newer state was written meanwhile
                owned.offset = first

    def _lowest(self) -> dict[int, int]:
        """Partition -> lowest offset of a batch that may be committed, or is being applied."""
        found = self._staged.lowest_offsets()
        for owned in self._owners.values():
            pending = owned.known.pending if owned.known else None
            for target in pending.targets if pending else ():
                for entry in target.entries:
                    lowest = found.get(entry.log_partition, entry.offset)
                    found[entry.log_partition] = min(lowest, entry.offset)
        return found
