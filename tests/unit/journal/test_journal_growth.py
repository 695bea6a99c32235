"""Goal: what it costs to read the journal's files, whole or damaged, grows no faster than them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakemq.broker_core.api.records.batch import encode, read_header
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.journal.segment.checkpoint import (
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from lakemq.plugins.journal.segment.damage import survey
from lakemq.plugins.journal.segment.index import SparseIndex, decode_index, encode_index
from lakemq.plugins.journal.segment.manifest import (
    Manifest,
    SegmentInfo,
    decode_manifest,
    encode_manifest,
)
from lakemq.plugins.journal.segment.producers import ProducerTable
from lakemq.plugins.journal.segment.walk import walk
from tests.support.growth import Work, grows_linearly

pytestmark = pytest.mark.slow


def segment(batches: int) -> bytes:
    return b"".join(
        encode(Columns([b"value"] * 3), base_offset=3 * number) for number in range(batches)
    )


def index(batches: int) -> SparseIndex:
    made = SparseIndex(0, interval_bytes=1)
    for number in range(batches):
        made.add(read_header(encode(Columns([b"v"]), base_offset=number)))
    return made


def walked(data: bytes) -> Work:
    return lambda: list(walk(lambda at, size: data[at : at + size], 0, len(data)))


def surveyed(data: bytes) -> Work:
    return lambda: list(survey(lambda at, size: data[at : at + size], 0, len(data), 0))


def false_headers(count: int) -> bytes:
    """Damage in which much looks like the beginning of a batch."""
    header = encode(Columns([b"v"]), base_offset=1)[:79]
    return (b"LMQB" + bytes(20)) * count + header * count


def manifest(count: int) -> Work:
    sealed = (SegmentInfo(n, 0, 0, n + 1, 100, 5, 6) for n in range(count))
    data = encode_manifest(Manifest("t", "ab" * 16, 0, 0, (*sealed, SegmentInfo(count, 0, 0))))
    return lambda: decode_manifest(data)


def index_bytes(count: int) -> Work:
    data = encode_index(index(count))
    return lambda: decode_index(data, 1)


def checkpoint(count: int) -> Work:
    data = encode_checkpoint(Checkpoint(index(count), ProducerTable()))
    return lambda: decode_checkpoint(data, 1)


INPUTS: dict[str, tuple[Callable[[int], Work], int]] = {
    "walk": (lambda n: walked(segment(n)), 1000),
    "survey": (lambda n: surveyed(segment(n)), 1000),
    "survey of damage": (lambda n: surveyed(b"x" + segment(n)[1:]), 1000),
    "survey of what looks like batches": (lambda n: surveyed(false_headers(n)), 2000),
    "manifest": (manifest, 300),
    "index": (index_bytes, 2000),
    "checkpoint": (checkpoint, 2000),
}


@pytest.mark.parametrize("name", INPUTS)
def test_cost_grows_with_size(name: str) -> None:
    grows_linearly(*INPUTS[name])
