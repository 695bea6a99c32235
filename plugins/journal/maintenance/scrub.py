"""The scrub: reads sealed segments slowly, again and again, so that damage is found while another
copy is whole, and not when a reader needs it.

What it finds is said, counted and shown as what readers run into; who can repair it looks there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from functools import partial
from typing import Final

from lakemq.plugins.journal.log.context import Counters
from lakemq.plugins.journal.log.folder import LogFolder
from lakemq.plugins.journal.log.partition_log import JournalLog
from lakemq.plugins.journal.segment.damage import readable
from lakemq.plugins.journal.segment.manifest import SegmentInfo
from lakemq.plugins.journal.segment.walk import BadBatch, walk

STEP_BYTES: Final = 256 * 1024
"""Read in one go; a larger batch is read whole."""
PASS_MIN_S: Final = 1.0
_log: Final = logging.getLogger(__name__)

InThread = Callable[[Callable[[], int]], Awaitable[int]]


class Scrub:
    """Of all logs of one storage engine. Lives on the event loop."""

    def __init__(
        self, logs: Callable[[], Iterable[JournalLog]], counters: Counters, in_thread: InThread, *,
        bytes_per_s: int, interval_s: float,
    ) -> None:  # fmt: skip
        """`in_thread(work)`: runs blocking work. `interval_s`: from the begin of one pass over all
        logs to that of the next, if it is over by then."""
        self._logs = logs
        self._counters = counters
        self._in_thread = in_thread
        self._bytes_per_s = bytes_per_s
        self._interval_s = interval_s

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            await self.run_once()
            left_s = self._interval_s - (loop.time() - began_s)
            await asyncio.sleep(max(PASS_MIN_S, left_s))

    async def run_once(self) -> None:
        """Read all that is sealed by now."""
        for log in list(self._logs()):
            try:
                for segment in log.folder.manifest.segments[:-1]:
                    if segment.local and log.is_open():
                        await self._read(log.folder, segment)
            except OSError as error:
                _log.warning("%s is not scrubbed: %s", log.folder.path, error)
            except Exception:  # One partition's trouble must not end the work on all others.
                _log.exception("scrub of %s", log.folder.path)

    async def _read(self, folder: LogFolder, segment: SegmentInfo) -> None:
        at = 0
        # One that was rewritten or deleted meanwhile does not matter any more.
        while at < segment.size_bytes and segment in folder.manifest.segments:
            end = await self._in_thread(partial(check_some, folder, segment, at))
            self._counters.scrubbed_bytes += end - at
            await asyncio.sleep((end - at) / self._bytes_per_s)
            at = end


def check_some(folder: LogFolder, segment: SegmentInfo, start: int) -> int:
    """Check the batches from position `start` of a sealed segment on, `STEP_BYTES` or one; returns
    where to go on. Damage is noted in the folder, and ends the segment. Raises OSError."""
    try:
        handle = folder.files.open(folder.path / segment.log_name)
    except FileNotFoundError:
        if segment in folder.manifest.segments:
            folder.note_missing(segment)
        return segment.size_bytes
    with closing(handle):
        read = readable(handle.read_at)
        try:
            for batch in walk(read, start, segment.size_bytes):
                end = batch.position + len(batch.data)
                if end - start >= STEP_BYTES:
                    return end
        except BadBatch as bad:
            folder.damage_at(segment, folder.index_of(segment, read), bad, handle)
    return segment.size_bytes
