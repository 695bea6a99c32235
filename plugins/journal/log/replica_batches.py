"""Record batches as a leader sent them, checked before any of them is appended. Pure."""

from __future__ import annotations

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import HEADER_BYTES, check_body, split
from lakemq.plugins.journal.log.writer import Stamped


def checked_batches(
    data: bytes, *, log_end: int, last_epoch: int, epoch_max: int, empty: bool
) -> list[Stamped]:
    """The batches that lie back to back in `data`, in linear time. CorruptBatch, which names the
    batch by its position (bytes), unless all of them are whole and continue a log that ends at
    `log_end` with a batch of `last_epoch` (-1: without one), under a leader of `epoch_max`.

    `empty`: the log starts and ends at `log_end`. Its first batch may begin below that, if it
    reaches over it: a leader whose records were deleted up to an offset within a batch has its
    log start there.
    """
    found: list[Stamped] = []
    view = memoryview(data)
    for position, header in split(data):
        end = position + header.total_bytes
        check_body(header, view[position + HEADER_BYTES : end])
        begins = empty and not found and header.last_offset >= log_end
        if header.base_offset < log_end and not begins:
            raise CorruptBatch(
                f"batch at byte {position} begins at offset {header.base_offset}, "
                f"the log ends at {log_end}"
            )
        if not last_epoch <= header.leader_epoch <= epoch_max or header.leader_epoch < 0:
            raise CorruptBatch(
                f"batch at byte {position} is of epoch {header.leader_epoch}, which is not within "
                f"{max(0, last_epoch)}..{epoch_max}"
            )
        log_end, last_epoch = header.last_offset + 1, header.leader_epoch
        # The usual case, one batch, is not copied.
        whole = position == 0 and end == len(data)
        found.append(Stamped(header, data if whole else data[position:end]))
    return found
