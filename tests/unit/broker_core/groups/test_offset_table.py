"""Goal: committed offsets come back from their bytes, and foreign records do no harm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.groups.types import METADATA_MAX_BYTES, check_group_name
from lakemq.broker_core.api.types import TopicPartition
from lakemq.broker_core.groups.offset_table import (
    Committed,
    OffsetKey,
    OffsetTable,
    check_commit,
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


@given(st.binary(max_size=80), st.none() | st.binary(max_size=80))
def test_foreign_records_are_refused_and_change_nothing(key: bytes, value: bytes | None) -> None:
    table = OffsetTable()
    try:
        table.apply(key, value)
    except ValueError:
        assert not table.groups()
    else:
        assert decode_key(key)


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"\0"])
def test_a_key_of_another_length_is_none(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ValueError, match="an offset key of 1[02] bytes"):
        decode_key(change(encode_key(OffsetKey("g", PLACE))))


def test_records_of_another_version_are_refused_and_change_nothing() -> None:
    table = OffsetTable()
    key, value = encode_key(OffsetKey("g", PLACE)), encode_value(Committed(5, 7, 9, ID))
    foreign = [
        (b"", value),
        (b"\x02" + key[1:], value),
        (key, b"\x02" + value[1:]),
        (key, b""),
        (key, value[:-1]),
        (key[:4], None),
    ]
    for each_key, each_value in foreign:
        with pytest.raises(ValueError, match="offset"):
            table.apply(each_key, each_value)
        assert table.groups() == []
    table.apply(key, value)
    assert table.groups() == ["g"]


def test_epochs_of_groups_are_known_from_their_commits() -> None:
    table = OffsetTable()
    table.put("g", {PLACE: Committed(5, 0, 9, ID)})
    assert (table.highest_epoch("g"), table.highest_epoch("other")) == (0, 0)
    table.put("g", {PLACE: Committed(6, 2, 9, ID)})
    table.put("g", {PLACE: Committed(7, 1, 9, ID)})
    table.put("g", {PLACE: None})
    assert table.highest_epoch("g") == 2, "also once its offsets are forgotten"


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


def test_the_shortest_and_the_longest_are_taken() -> None:
    for name in ("g", "g" * 249):
        check_group_name(name)
    for offset in (-1, 0, 2**63 - 1):
        check_commit(offset, "m" * METADATA_MAX_BYTES)


def test_wrong_names_and_offsets_are_refused() -> None:
    for name in ("", "a\nb", "x" * 250):
        with pytest.raises(InvalidRequest, match="group"):
            check_group_name(name)
    with pytest.raises(InvalidRequest, match="offset is -2"):
        check_commit(-2, "")
    with pytest.raises(InvalidRequest, match="metadata"):
        check_commit(0, "x" * 4097)
