"""Where records of a range are read from; segments as an object holds them."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.command_line import BrokerOptions
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.native.sdk import CorruptBatch, TieredSegment, TieredSegments, stored_batches
from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.cli.broker_access import access_of
from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.source.object_store import StoreUnavailable, open_objects
from lakemq.spark_plugin.source.options import parse_options
from lakemq.spark_plugin.source.planning import OffsetRange, placed
from lakemq.spark_plugin.tiered_options import Tiered

BASE = {"bootstrap": "b", "subscribe": "t"}


def segment(base: int, end: int, size: int = 100, gaps: bool = False) -> TieredSegment:
    return TieredSegment(
        base, end, "s3://bucket/lake/", f"id/0/{base}.log", 0, size, 0, gaps, 0, size
    )


@given(
    cuts=st.lists(st.integers(0, 60), min_size=2, max_size=8, unique=True).map(sorted),
    tiered=st.lists(st.booleans(), min_size=8, max_size=8),
    start=st.integers(0, 60),
    length=st.integers(1, 40),
    log_start=st.integers(0, 30),
)
def test_every_offset_is_read_once_and_in_order(cuts, tiered, start, length, log_start) -> None:
    pairs = [*zip(cuts, cuts[1:], strict=False)]
    segments = tuple(segment(*pair) for pair, there in zip(pairs, tiered, strict=False) if there)
    wanted = OffsetRange("t", "id", 0, start, start + length)
    pieces = placed(wanted, TieredSegments(log_start, 100, segments, False))
    read = [offset for each in pieces for offset in range(each.offsets.start, each.offsets.end)]
    assert read == list(range(wanted.start, wanted.end))
    for piece in pieces:
        assert piece.offsets.start < piece.offsets.end
        if piece.segment is not None:
            assert piece.offsets.start >= max(piece.segment.base_offset, log_start)
            assert piece.offsets.end <= piece.segment.next_offset
    by_store = {o for e in pieces if e.segment for o in range(e.offsets.start, e.offsets.end)}
    held = {o for each in segments for o in range(each.base_offset, each.next_offset)}
    assert by_store == {o for o in read if o in held and o >= log_start}


def test_where_the_broker_has_more_to_tell_it_is_asked_again() -> None:
    wanted = OffsetRange("t", "id", 0, 0, 100)
    (piece,) = placed(wanted, TieredSegments(0, 100, (segment(0, 40),), True))
    assert piece.offsets.end == 40
    (all_of_it,) = placed(wanted, TieredSegments(0, 100, (), True))
    assert all_of_it.segment is None and all_of_it.offsets == wanted, "no endless asking"


def batches(*bounds: tuple[int, int], step: int = 1) -> list[bytes]:
    """A batch for each (first, last); `step` leaves offsets out, as compaction does."""
    found = []
    for first, last in bounds:
        deltas = range(0, last - first + 1, step)
        values = [b"%d" % (first + delta) for delta in deltas]
        sparse = list(deltas) if step > 1 else None
        found.append(encode(Columns(values), base_offset=first, offset_deltas=sparse))
    return found


def read_all(data: bytes, told: TieredSegment, start: int, end: int, chunk: int = 150) -> list[int]:
    def read(position: int, size: int) -> bytes:
        assert position + size <= told.position + told.read_end_position, "no byte too many"
        return data[position : position + size]

    found = stored_batches(read, told, start, end, chunk_bytes=chunk)
    return [o for batch in found for o in batch.offsets() if start <= o < end]


@pytest.mark.parametrize("chunk", [1, 100, 1 << 20])
def test_batches_come_whole_from_any_place_within_an_object(chunk: int) -> None:
    parts = batches((10, 19), (20, 20), (21, 40))
    data = b"before" + b"".join(parts)
    told = replace(segment(10, 41, len(data) - 6), position=6)
    for start, end in ((10, 41), (15, 16), (19, 21), (20, 21), (30, 41), (0, 99)):
        expected = [o for o in range(10, 41) if start <= o < end]
        assert read_all(data, told, start, end, chunk) == expected
    hinted = replace(told, read_position=len(parts[0]), read_end_position=len(parts[0] + parts[1]))
    assert read_all(data, hinted, 20, 21, chunk) == [20]


def test_gaps_are_gaps_only_where_there_may_be_some() -> None:
    data = b"".join(batches((3, 9), (20, 29), step=2))
    sparse = segment(0, 50, len(data), gaps=True)
    assert read_all(data, sparse, 0, 50) == [3, 5, 7, 9, 20, 22, 24, 26, 28]
    with pytest.raises(CorruptBatch, match=r"s3://bucket/lake/id/0/0.log, byte 0: .*0 is expected"):
        read_all(data, segment(0, 50, len(data)), 0, 50)


def test_what_is_not_the_segment_is_refused() -> None:
    one, two, three = batches((0, 9), (10, 19), (20, 29))
    data = one + two + three
    told = segment(0, 30, len(data))
    with pytest.raises(CorruptBatch, match="10 is expected"):
        read_all(one + three + two, told, 0, 30)
    with pytest.raises(CorruptBatch, match="0 is expected"):
        read_all(three + two + one, told, 0, 15)
    late = replace(told, read_position=len(one) + len(two))
    with pytest.raises(CorruptBatch):
        read_all(data, late, 5, 30)
    early = replace(told, read_end_position=len(one))
    with pytest.raises(CorruptBatch, match="before 15"):
        read_all(data, early, 0, 15)
    flipped = bytearray(data)
    flipped[len(one) - 1] ^= 1
    with pytest.raises(CorruptBatch, match="byte 0: .*CRC"):
        read_all(bytes(flipped), told, 0, 30)
    with pytest.raises(CorruptBatch, match="cut short|bytes"):
        read_all(data[: len(one) + 40], told, 0, 30)


def test_options_say_how_and_secrets_are_not_shown() -> None:
    given = {
        **BASE,
        "tiered": "Always",
        "tieredStore.URL": "file:///mnt/lake",
        "tieredStore.secret_access_key": "hush",
    }
    access = parse_options(given, streaming=False).access
    expected = Tiered("always", "file:///mnt/lake", (("secret_access_key", "hush"),))
    assert access.tiered == expected
    assert "hush" not in repr(access)
    assert Access.from_json(access.to_json()) == access
    assert parse_options(BASE, streaming=True).access.tiered == Tiered("auto")
    with pytest.raises(OptionError, match="tiered is 'sometimes'; it takes auto or never"):
        parse_options({**BASE, "tiered": "sometimes"}, streaming=False)
    with pytest.raises(OptionError, match="unknown option tieredStor; did you mean"):
        parse_options({**BASE, "tieredStor": "x"}, streaming=False)


def test_commands_take_them_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert access_of(BrokerOptions()) == Access()
    given = {"LAKEMQ_TIERED": "never", "LAKEMQ_TIERED_STORE_REGION": "eu"}
    for name, value in {**given, "LAKEMQ_TIERED_STORE_": "x"}.items():
        monkeypatch.setenv(name, value)
    access = access_of(BrokerOptions())
    assert access.tiered == Tiered("never", options=(("region", "eu"),))


@pytest.mark.parametrize("url", ["s3://bucket/lake/", "gs://bucket/", "nowhere://x/"])
def test_a_store_that_nothing_here_can_speak_to_is_away(url: str, monkeypatch) -> None:
    if url.startswith("nowhere"):
        with pytest.raises(StoreUnavailable):
            open_objects(url, Tiered())
        return
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreUnavailable, match="obstore is not installed here"):
        open_objects(url, Tiered())
