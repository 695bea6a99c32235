"""Goal: what decoders and pure modules of the MetaService and the native protocol cost grows no
faster than what they are given (`tests/unit/mqtt/bounds/test_mqtt_growth.py` has MQTT's).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakemq.broker_core.api.queues.types import QueueSettings, Settlement
from lakemq.broker_core.api.records.headers import decode_headers, encode_headers
from lakemq.broker_core.api.types import TopicPartition
from lakemq.broker_core.groups.balance import balance
from lakemq.broker_core.groups.offset_table import (
    Committed,
    OffsetKey,
    OffsetTable,
    encode_key,
    encode_value,
)
from lakemq.broker_core.queues.partition_state import QueuePartitionState, ranges
from lakemq.broker_core.queues.snapshot import (
    DeliveryState,
    Run,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
)
from lakemq.broker_core.transactions.formats import decode_state, encode_state
from lakemq.broker_core.transactions.state import (
    CommitTarget,
    OwnerState,
    PendingCommit,
    StagedRef,
)
from lakemq.meta_service.catalog.command_codec import decode_command, encode_command
from lakemq.meta_service.catalog.commands import Txn
from lakemq.meta_service.raft.log.log_format import (
    Entry,
    encode_log_header,
    encode_record,
    parse_log,
)
from lakemq.meta_service.raft.wire_format import decode_message, encode_message
from lakemq.meta_service.storage.snapshot_stream import FileNote, parse_manifest
from tests.fuzz.registry import packed
from tests.support.growth import Work, grows_linearly

pytestmark = pytest.mark.slow

ID = "00112233445566778899aabbccddeeff"


def append_message(count: int) -> Work:
    entries = [(b"\x00x", index + 1, 1) for index in range(count)]
    data = encode_message({
        "type": "append", "term": 1, "prev_index": 0, "prev_term": None, "entries": entries,
        "commit": 0, "round": 1,
    })  # fmt: skip
    return lambda: decode_message(data)


def log_of(count: int) -> bytes:
    records = [encode_record(Entry(b"\x00abc", index, 1), index) for index in range(1, count + 1)]
    return encode_log_header() + b"".join(records)


def whole_log(count: int) -> Work:
    data = log_of(count)
    return lambda: parse_log(data)


def log_with_a_damaged_tail(count: int) -> Work:
    """Records that were not acknowledged when the last of them was written: a torn tail."""
    records = [encode_record(Entry(b"\x00abc", index, 1), 1) for index in range(1, count + 1)]
    records[1] = b"\0" * len(records[1])
    data = encode_log_header() + b"".join(records)
    return lambda: parse_log(data)


def log_with_what_looks_like_records(count: int) -> Work:
    """Behind a torn record one whose value begins, again and again, like records to its end."""
    size = len(encode_record(Entry(b"", 9, 1), 9))
    forged = [
        b"\xf1RL\x1a" + bytes(4) + (size * (count - place - 1)).to_bytes(4, "little") + bytes(28)
        for place in range(count)
    ]
    value = b"".join(each[:size] for each in forged)
    data = log_of(1) + b"\0" * size + encode_record(Entry(value, 3, 1), 1)
    return lambda: parse_log(data)


def command(count: int) -> Work:
    data = encode_command(Txn((), tuple((b"k%d" % each, b"v", 0) for each in range(count))))
    return lambda: decode_command(data)


def snapshot_manifest(count: int) -> Work:
    data = packed([FileNote(f"{each}.sst", each, bytes(32)) for each in range(count)])
    return lambda: parse_manifest(data)


def record_headers(count: int) -> Work:
    data = encode_headers((("a", b"b"),) * count)
    return lambda: decode_headers(data)


def owner_state(count: int) -> Work:
    target = CommitTarget("t", ID, 0, 0, tuple(StagedRef(0, each, 1) for each in range(count)))
    data = encode_state(OwnerState(1, 1, 1, 1, 1, 1, PendingCommit((target,), (("offsets", b""),))))
    return lambda: decode_state(data)


def committed_offsets(count: int) -> Work:
    value = encode_value(Committed(5, 1, 5, ID))
    rows = [(encode_key(OffsetKey("g", TopicPartition("t", each))), value) for each in range(count)]

    def apply() -> None:
        table = OffsetTable()
        for key, each in rows:
            table.apply(key, each)
        for key, _ in rows:
            table.apply(key, None)
        assert not table.groups()

    return apply


def queue_snapshot(count: int) -> Work:
    runs = tuple(Run(1, DeliveryState(each % 3)) for each in range(count))
    data = encode_snapshot(Snapshot(ID, 0, runs))
    return lambda: decode_snapshot(data)


def queue_life(count: int) -> Work:
    """Deliver everything, and settle it from the end."""

    def live() -> None:
        partition = QueuePartitionState(QueueSettings(), Snapshot(ID, 0))
        partition.load(range(count), None, count)
        given = partition.acquire(1, count, 0)
        assert len(given) == count
        for each in reversed(given):
            assert partition.settle(1, each.offset, Settlement.ACCEPT, 1)
        partition.snapshot()

    return live


def offset_ranges(count: int) -> Work:
    offsets = set(range(0, 2 * count, 2))
    return lambda: ranges(offsets)


def first_assignment(count: int) -> Work:
    """Partitions and members grow alike."""
    topics = {f"m{each}": frozenset({"t"}) for each in range(count)}
    return lambda: balance(topics, {"t": 4 * count}, {})


def assignment_of_many_topics(count: int) -> Work:
    names = [f"t{each}" for each in range(count)]
    topics = {f"m{each}": frozenset(names) for each in range(4)}
    partitions = dict.fromkeys(names, 2)
    held = balance(topics, partitions, {})
    return lambda: balance(topics, partitions, held)


@pytest.mark.parametrize(
    ("prepare", "size"),
    [
        (append_message, 500), (whole_log, 500), (log_with_a_damaged_tail, 300),
        (log_with_what_looks_like_records, 500), (command, 100), (snapshot_manifest, 400),
        (record_headers, 4000), (owner_state, 2000), (committed_offsets, 500),
        (queue_snapshot, 1500), (queue_life, 300), (offset_ranges, 10_000), (first_assignment, 60),
        (assignment_of_many_topics, 100),
    ],
)  # fmt: skip
def test_cost_grows_with_the_input(prepare: Callable[[int], Work], size: int) -> None:
    grows_linearly(prepare, size)
