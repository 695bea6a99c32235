"""Records of several calls -> the columns of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import TypeVar

from lakemq.broker_core.api.types import Columns

T = TypeVar("T")


def joined(parts: Sequence[Columns], now_ms: Sequence[int]) -> Columns:
    """All records in order; those of a single call without a copy. `now_ms`: for each call, the
    timestamp of its records where they have none and others have."""
    if len(parts) == 1:
        return parts[0]
    counts = [len(part.values) for part in parts]
    times: list[int] | None = None
    if any(part.timestamps_ms is not None for part in parts):
        times = list(
            chain.from_iterable(
                repeat(now, count) if part.timestamps_ms is None else part.timestamps_ms
                for part, now, count in zip(parts, now_ms, counts, strict=True)
            )
        )
    return Columns(
        list(chain.from_iterable(part.values for part in parts)),
        _filled([part.keys for part in parts], None, counts),
        _filled([part.headers for part in parts], b"", counts),
        times,
    )


def _filled(parts: list[Sequence[T] | None], missing: T, counts: list[int]) -> list[T] | None:
    """One column of several calls. `missing` stands in where a call left it out; None: all did."""
    # A column that no call gave stays out of the batch.
    if all(part is None for part in parts):
        return None
    return list(
        chain.from_iterable(
            [missing] * count if part is None else part
            for part, count in zip(parts, counts, strict=True)
        )
    )
