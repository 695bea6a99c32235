"""Goal: committed offsets come back from their bytes, and foreign records do no harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.api.errors import InvalidRequest
from broker_core.api.types import TopicPartition
from plugins.native.offset_table import (
    Committed,
    OffsetKey,
    OffsetTable,
    check_commit,
    check_group_name,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

ID = "00112233445566778899aabbccddeeff"
PLACE = TopicPartition("t", 3)


def test_the_bytes_are_as_the_page_says() -> None:
    assert encode_key(OffsetKey("gü", PLACE)) == b"\x01\x03\x00\x01\x00g\xc3\xbct\x03\x00\x00\x00"
    value = encode_value(Committed(5, 7, 9, ID, "m"))
    assert value == (
        b"\x01" + b"".join(n.to_bytes(8, "little") for n in (5, 7, 9)) + bytes.fromhex(ID) + b"m"
    )


@given(st.text(max_size=60), st.text(max_size=60), st.integers(0, 2**32 - 1))
def test_keys_come_back(group: str, topic: str, partition: int) -> None:
    key = OffsetKey(group, TopicPartition(topic, partition))
    assert decode_key(encode_key(key)) == key


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.text(max_size=60))
def test_values_come_back(offset: int, epoch: int, metadata: str) -> None:
    committed = Committed(offset, epoch, 12, ID, metadata)
    assert decode_value(encode_value(committed)) == committed


@given(st.none() | st.binary(max_size=80), st.none() | st.binary(max_size=80))
def test_foreign_records_are_counted_and_left(key: bytes | None, value: bytes | None) -> None:
    table = OffsetTable()
    table.apply(key, value)
    assert not table.groups() or decode_key(key or b"")
    assert table.unreadable == (0 if table.groups() else table.unreadable)


def test_the_newest_holds_and_null_forgets() -> None:
    table = OffsetTable()
    key = encode_key(OffsetKey("g", PLACE))
    table.apply(key, encode_value(Committed(5, 7, 9, ID)))
    table.apply(key, encode_value(Committed(4, 6, 9, ID)))
    assert table.offset("g", PLACE, ID) == 4
    assert table.offset("g", PLACE, "f" * 32) == -1, "of a topic that is gone"
    assert table.highest_epoch("g") == 7
    table.apply(key, None)
    assert (table.groups(), table.offset("g", PLACE, ID)) == ([], -1)


def test_wrong_names_and_offsets_are_refused() -> None:
    for name in ("", "a\nb", "x" * 250):
        with pytest.raises(InvalidRequest, match="group"):
            check_group_name(name)
    with pytest.raises(InvalidRequest, match="offset is -2"):
        check_commit(-2, "")
    with pytest.raises(InvalidRequest, match="metadata"):
        check_commit(0, "x" * 4097)
