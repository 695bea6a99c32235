"""Hypothesis strategies for record batches: columns as producers send them."""

from __future__ import annotations

from hypothesis import strategies as st

from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import Columns, Compression

_cells = st.none() | st.binary(max_size=40)
_header_lists = st.lists(
    st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3
).map(tuple)
_near_times = st.integers(1_700_000_000_000, 1_700_000_000_000 + 10**6)
_any_times = st.integers(-(2**61), 2**61)
codecs = st.sampled_from(list(Compression))


@st.composite
def column_sets(draw: st.DrawFn, times: st.SearchStrategy[int] = _any_times) -> Columns:
    count = draw(st.integers(1, 12))

    def column(entries: st.SearchStrategy) -> list:
        return draw(st.lists(entries, min_size=count, max_size=count))

    return Columns(
        values=column(_cells),
        keys=column(_cells) if draw(st.booleans()) else None,
        headers=column(_header_lists.map(encode_headers)) if draw(st.booleans()) else None,
        timestamps_ms=column(draw(st.sampled_from([times, _near_times])))
        if draw(st.booleans())
        else None,
    )


@st.composite
def sparse_deltas(draw: st.DrawFn, count: int) -> list[int]:
    deltas = st.integers(0, 2**32 - 1)
    return sorted(draw(st.sets(deltas, min_size=count, max_size=count)))
