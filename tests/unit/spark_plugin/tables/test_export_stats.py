"""Statistics of data files: no reader may skip a file that it needs."""

from __future__ import annotations

import datetime
import io

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from lakemq.spark_plugin.export.tables.stats import delta_stats
from lakemq.spark_plugin.export.tables.table import WrittenFile


def stats_of(table, group_rows=3):
    file = io.BytesIO()
    with parquet.ParquetWriter(file, table.schema, store_schema=False) as writer:
        writer.write_table(table, row_group_size=group_rows)
    footer = io.BytesIO()
    writer.writer.metadata.write_metadata_file(footer)
    return delta_stats(WrittenFile("x", table.num_rows, 0, footer.getvalue()))


MICROS = st.lists(st.none() | st.integers(-(10**15), 4 * 10**15), min_size=1, max_size=12)


@given(MICROS)
def test_bounds_hold_every_value(micros):
    stats = stats_of(pa.table({"at": pa.array(micros, pa.timestamp("us", tz="UTC"))}))
    present = [each for each in micros if each is not None]
    assert stats["numRecords"] == len(micros)
    assert stats["nullCount"] == {"at": len(micros) - len(present)}
    if not present:
        assert stats["minValues"] == {}
        return
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    low, high = (
        (datetime.datetime.fromisoformat(stats[side]["at"]) - epoch)
        // datetime.timedelta(microseconds=1)
        for side in ("minValues", "maxValues")
    )
    assert min(present) - 1000 < low <= min(present)
    assert max(present) <= high < max(present) + 1000


def test_nested_columns_and_text():
    table = pa.table(
        {
            "_meta": [{"offset": 7, "topic": "t"}, {"offset": 3, "topic": "u"}],
            "celsius": [float("nan"), 1.0],
            "many": [[1, 2], [3]],
            "ok": [True, False],
        }
    )
    stats = stats_of(table, group_rows=1)
    assert stats["minValues"]["_meta"] == {"offset": 3}
    assert stats["maxValues"]["_meta"] == {"offset": 7}
    assert "many" not in str(stats)
    assert "celsius" not in stats["maxValues"], "NaN is above every bound"
    assert (stats["minValues"]["ok"], stats["maxValues"]["ok"]) == (False, True)
