"""Goal: a look-up by offset or timestamp finds what a scan of the log finds, whatever timestamps
records have: equal ones over many index entries, and ones that go back."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.records.batch import encode, read_header
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.journal.segment.index import SparseIndex
from tests.unit.journal.rig import Rig


def index_of(times: list[int], interval_bytes: int) -> tuple[SparseIndex, list[tuple[int, int]]]:
    """The index of batches of one record, and (position, newest timestamp) of each."""
    index = SparseIndex(0, interval_bytes=interval_bytes)
    batches = []
    for offset, time_ms in enumerate(times):
        data = encode(Columns([b"v"], None, None, [time_ms]), base_offset=offset)
        batches.append((index.covered_bytes, time_ms))
        index.add(read_header(data))
    return index, batches


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=30),
    st.sampled_from([1, 100, 300]),
    st.integers(-1, 5),
)
def test_a_search_by_time_begins_at_or_before_the_first_match(
    times: list[int], interval_bytes: int, wanted_ms: int
) -> None:
    index, batches = index_of(times, interval_bytes)
    first = next((position for position, time_ms in batches if time_ms >= wanted_ms), None)
    found = index.position_of_time(wanted_ms)
    if first is not None:
        assert found <= first
        before = [position for position in index.positions if position < first]
        assert found >= (before[-1] if before else 0), "no further back than one entry"


@pytest.mark.parametrize("same", [2, 10, 50])
def test_of_many_equal_timestamps_the_first_record_is_found(
    loop: asyncio.AbstractEventLoop, same: int
) -> None:
    rig = Rig(loop, interval_bytes=1, tail_max_bytes=0)
    for time_ms in [1000, *[2000] * same, 3000]:
        rig.append_durably(b"v", timestamps_ms=[time_ms])
    for wanted_ms, offset in ((1000, 0), (1001, 1), (2000, 1), (2001, same + 1), (3001, same + 2)):
        found = rig.loop.run_until_complete(rig.log.offset_for_timestamp(wanted_ms))
        assert found == offset
