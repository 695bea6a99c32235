"""Cursors: next offsets to read, and the JSON that checkpoints and users write.

A cursor names, for every topic, the topic's id and the next offset of each partition. The id tells
a topic that was deleted and created again from the one that was read before. As JSON:

    {"v": 1, "t": {"sensors": {"id": "<topic id>", "p": {"0": 1200}}}}

with keys sorted, because Spark compares the text to see whether anything is new.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from lakemq.spark_plugin.errors import OffsetsError

VERSION: Final = 1
SHOWN_MAX: Final = 200
"""Characters of foreign offsets that an error shows."""
LATEST: Final = -1
"""In users' JSON: the end of the partition."""
EARLIEST: Final = -2
"""In users' JSON: the oldest record of the partition."""


class TopicCursor(NamedTuple):
    """Next offsets to read of one topic."""

    topic_id: str
    offsets: Mapping[int, int]
    """Partition -> next offset to read."""


Cursor = Mapping[str, TopicCursor]
"""Topic name -> next offsets to read."""


def cursor_to_json(cursor: Cursor) -> dict[str, Any]:
    """The JSON object of a cursor, keys in order."""
    topics = {
        name: {"id": cursor[name].topic_id, "p": _sorted_offsets(cursor[name].offsets)}
        for name in sorted(cursor)
    }
    return {"v": VERSION, "t": topics}


def _sorted_offsets(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offsets[partition] for partition in sorted(offsets)}


def cursor_from_json(value: Mapping[str, Any]) -> dict[str, TopicCursor]:
    """Inverse of `cursor_to_json`; OffsetsError says what is wrong."""
    version = value.get("v")
    if version is None and value:
        raise OffsetsError(
            "the checkpoint is of another source, such as Kafka: its offsets are "
            f"{json.dumps(value)[:SHOWN_MAX]}. Give a new checkpointLocation, and say where to "
            "begin by startingOffsets"
        )
    if version != VERSION:
        raise OffsetsError(f"checkpoint offsets of version {version!r}; this build reads {VERSION}")
    try:
        return {
            str(name): TopicCursor(
                str(topic["id"]), {int(p): int(offset) for p, offset in topic["p"].items()}
            )
            for name, topic in value["t"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OffsetsError(f"checkpoint offsets can't be read: {error!r}") from None


def parse_offsets(option: str, text: str) -> dict[str, dict[int, int]]:
    """A user's `{"topic": {"0": 23, "1": -2}}` -> topic -> partition -> offset.

    -1 is the latest, -2 the earliest offset. OffsetsError names the option.
    """
    found = _parse_partitions(option, text, f'{{"topic": {{"0": 23, "1": {EARLIEST}}}}}')
    for topic, offsets in found.items():
        for partition, offset in offsets.items():
            if offset < EARLIEST:
                raise OffsetsError(
                    f"option {option}: offset {offset} of {topic}-{partition} is negative; only "
                    f"{LATEST} (latest) and {EARLIEST} (earliest) may be"
                )
    return found


def parse_timestamps(option: str, text: str) -> dict[str, dict[int, int]]:
    """A user's `{"topic": {"0": 1700000000000}}` -> topic -> partition -> ms since the epoch."""
    found = _parse_partitions(option, text, '{"topic": {"0": 1700000000000}}')
    for topic, times in found.items():
        for partition, time in times.items():
            if time < 0:
                raise OffsetsError(
                    f"option {option}: timestamp {time} of {topic}-{partition} is negative"
                )
    return found


def parse_assignment(text: str) -> dict[str, set[int]]:
    """A user's `{"topic": [0, 1]}` -> topic -> partitions."""
    value = _parse_object("assign", text, '{"topic": [0, 1]}')
    found = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, list) or not all(type(p) is int for p in partitions):
            raise OffsetsError(f"option assign: {topic} takes a list of partition numbers")
        found[topic] = set(partitions)
    return found


def _parse_partitions(option: str, text: str, example: str) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in _parse_object(option, text, example).items():
        if not isinstance(partitions, dict):
            raise OffsetsError(f"option {option}: {topic} takes an object such as {example}")
        found[topic] = {}
        for partition, number in partitions.items():
            if type(number) is not int or not partition.isdecimal():
                raise OffsetsError(
                    f"option {option}: {topic} has {partition!r}: {number!r}; it takes a partition "
                    f"number and a whole number, such as {example}"
                )
            found[topic][int(partition)] = number
    return found


def _parse_object(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OffsetsError(
            f"option {option} is not valid JSON ({error}); it takes, for example, {example}"
        ) from None
    if not isinstance(value, dict) or not value:
        raise OffsetsError(f"option {option} takes a JSON object such as {example}")
    return value
