"""Goal: a record's partition depends on its key alone; keyless records spread."""

import pytest

from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.native.sdk import InvalidRequest
from lakemq.plugins.native.sdk.arguments import first_offset
from lakemq.plugins.native.sdk.producer.partitioning import StickyPartitioner


def test_split_keeps_order_and_columns_together() -> None:
    keys = [b"k%d" % number for number in range(50)]
    columns = Columns(
        [b"v" + key for key in keys], keys, [b"h" + key for key in keys], list(range(50))
    )
    homes = StickyPartitioner().split(columns, 4)
    assert sum(len(each.values) for each in homes.values()) == 50
    for home, each in homes.items():
        assert each.keys is not None and each.headers is not None and each.timestamps_ms is not None
        assert list(each.keys) == [key for key in keys if partition_of(key, 4) == home]
        assert list(each.values) == [b"v" + (key or b"") for key in each.keys]
        assert list(each.headers) == [b"h" + (key or b"") for key in each.keys]
        assert list(each.timestamps_ms) == [keys.index(key or b"") for key in each.keys]


def test_keyless_batches_take_turns() -> None:
    partitioner = StickyPartitioner()
    columns = Columns([b"a", b"b"])
    assert [list(partitioner.split(columns, 3)) for _ in range(4)] == [[0], [1], [2], [0]]


@pytest.mark.parametrize("key", [bytearray(b"key"), memoryview(bytearray(b"key"))])
def test_what_is_like_bytes_is_a_key(key: bytes) -> None:
    assert StickyPartitioner().of(key, 7) == partition_of(b"key", 7)


def test_start_words() -> None:
    assert [first_offset(start, 3, 9) for start in ("earliest", "latest", 5)] == [3, 9, 5]
    for wrong in ("newest", -1):
        with pytest.raises(InvalidRequest, match="start is"):
            first_offset(wrong, 3, 9)
