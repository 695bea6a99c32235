"""A log without records: only what replication looks at."""

from __future__ import annotations

from collections.abc import Sequence

from lakemq.broker_core.api.types import Offset


class LogShape:
    """Implements `LogState`. `epochs`: that of each record, from `start` on."""

    def __init__(
        self,
        epochs: Sequence[int] = (),
        *,
        durable: int | None = None,
        high_watermark: int = 0,
        start: int = 0,
        segments: Sequence[int] = (0,),
    ) -> None:
        self.epochs = list(epochs)
        self.log_start_offset = Offset(start)
        self.high_watermark = Offset(max(start, high_watermark))
        self.durable_end = Offset(start + len(epochs) if durable is None else durable)
        self.segments = list(segments)
        """Where they begin."""

    @property
    def log_end_offset(self) -> Offset:
        return Offset(self.log_start_offset + len(self.epochs))

    def last_epoch(self, offset: Offset | None = None) -> int:
        end = self.log_end_offset if offset is None else offset
        below = self.epochs[: end - self.log_start_offset]
        return below[-1] if below else -1

    def epoch_end(self, epoch: int) -> tuple[int, Offset]:
        below = [each for each in self.epochs if each <= epoch]
        return (below[-1] if below else -1), Offset(self.log_start_offset + len(below))

    def segment_start(self, offset: Offset) -> Offset:
        return Offset(max(each for each in self.segments if each <= offset))

    def append(self, *epochs: int, durable: bool = True) -> None:
        self.epochs += epochs
        if durable:
            self.durable_end = self.log_end_offset
