"""How far a streaming query is behind the topics that it reads, from Spark's own progress. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from lakemq.spark_plugin.errors import OffsetsError
from lakemq.spark_plugin.source.offsets import Cursor, cursor_from_json

Lag = Mapping[tuple[str, int], int]
"""(topic, partition) -> records that the topic holds and the query has not read."""


def lag_of(sources: Iterable[tuple[str | None, str | None]]) -> dict[tuple[str, int], int]:
    """Lag over the sources of one progress, each (end offset, latest offset) as Spark has them;
    sources of other formats have none."""
    found: dict[tuple[str, int], int] = {}
    for end_text, latest_text in sources:
        end, latest = _cursor(end_text), _cursor(latest_text)
        for topic, ends in (latest or {}).items():
            read = end[topic] if end is not None and topic in end else None
            # A topic that was created again begins anywhere below its end: nothing of it was read.
            is_same = read is not None and read.topic_id == ends.topic_id
            for partition, offset in ends.offsets.items():
                done = read.offsets.get(partition, 0) if read is not None and is_same else 0
                found[topic, partition] = max(0, offset - done)
    return found


def _cursor(text: str | None) -> Cursor | None:
    try:
        value: Any = json.loads(text or "null")
        return cursor_from_json(value) if isinstance(value, dict) else None
    except (ValueError, OffsetsError):
        return None
