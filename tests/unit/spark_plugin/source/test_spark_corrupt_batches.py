"""Stored batches that are whole outside and corrupt inside: Spark and exports step over them."""

from __future__ import annotations

import logging

import pytest

from lakemq.plugins.native.sdk import CorruptBatch, TieredSegment, TieredSegments
from lakemq.spark_plugin.export.decoding.given_schema import infer_schema
from lakemq.spark_plugin.export.job.run import audit_target
from lakemq.spark_plugin.export.job.runs import Run
from lakemq.spark_plugin.source import corrupt
from lakemq.spark_plugin.source.broker_reader import read_arrow
from lakemq.spark_plugin.source.planning import OffsetRange
from lakemq.spark_plugin.source.tiered import Stores, read_placed
from lakemq.spark_plugin.tiered_options import Tiered
from tests.support.poison import garbage_lengths, no_frame, sealed
from tests.support.spark.lake_tables import FORMATS, target_in
from tests.unit.spark_plugin.job.test_export_loop import Export

GOOD = [0, 1, 2, 4, 6, 7]


@pytest.fixture
def poisoned(memory, monkeypatch):
    """Offsets 3 and 5 can't be read."""
    monkeypatch.setattr(corrupt, "_skipped", [])
    memory.create_topic("t")
    memory.append_values("t", 0, b'{"n":0}', b'{"n":1}', b'{"n":2}')
    memory.append_poison("t", 0, garbage_lengths())
    memory.append_values("t", 0, b'{"n":4}')
    memory.append_poison("t", 0, no_frame())
    memory.append_values("t", 0, b'{"n":6}', b'{"n":7}')
    return memory


def test_reading_steps_over_them_and_says_where(poisoned, caplog) -> None:
    wanted = OffsetRange("t", poisoned.describe_topic("t").topic_id, 0, 0, 8)
    skipped = []
    with caplog.at_level(logging.WARNING, "lakemq.spark"):
        for _ in range(2):
            batches = list(
                read_arrow(poisoned, wanted, columns=("offset", "value"), on_skipped=skipped.append)
            )
            assert [n for each in batches for n in each.column(0).to_pylist()] == GOOD
    assert sorted(skipped) == sorted(2 * [Run(3, 4), Run(5, 6)])
    assert len(caplog.messages) == 2, "each is logged once"
    assert "t-0: offsets 3 to 3 are in a corrupt batch" in caplog.messages[0]
    assert corrupt.skipped_batches().count == 2


def test_a_batch_longer_than_the_range_counts_as_far_as_it_is_in_it(memory) -> None:
    memory.create_topic("t")
    memory.append_poison("t", 0, sealed(b"\xff" * 300, records=20))
    skipped = []
    wanted = OffsetRange("t", memory.describe_topic("t").topic_id, 0, 5, 9)
    assert not list(read_arrow(memory, wanted, columns=("value",), on_skipped=skipped.append))
    assert skipped == [Run(5, 9)]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("format", ["raw", "json"])
def test_an_export_goes_on_and_its_audit_knows_them(poisoned, tmp_path, kind, format) -> None:
    target = target_in(tmp_path, kind)
    decoding = {"format": "json", "value_schema": "n bigint"} if format == "json" else {}
    export = Export(target, commit_rows=None)
    (report,) = export.run(**decoding)
    assert report.rows == len(GOOD)
    assert report.skipped == {0: [Run(3, 4), Run(5, 6)]}
    assert report.skipped_sentence() == "2 offsets skipped in corrupt batches (partition 0: 3, 5)"
    assert export.rows() == [(0, n) for n in GOOD]
    poisoned.close = lambda: None
    (found,) = audit(poisoned, target)
    assert found.complete
    assert found.skipped == [Run(3, 4), Run(5, 6)]
    assert "2 offsets skipped in corrupt batches: 3, 5" in found.sentence("t")


def audit(client, target):
    from lakemq.spark_plugin.export.job import run

    class Connected:
        def __enter__(self):
            return client

        def __exit__(self, *_):
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "connect", lambda *_: Connected())
        return audit_target("memory", "t", target, "e", "", by_key=True)


def test_columns_are_inferred_from_the_others(poisoned, tmp_path) -> None:
    target = target_in(tmp_path, "parquet")
    assert infer_schema(poisoned, "t", "json", ",", target, "", False) == "`n` bigint"


def test_a_tiered_segment_is_read_to_its_end(poisoned, monkeypatch) -> None:
    """`always`: nothing may come through the broker, and no error either."""
    data = b"".join(stored.data for stored in poisoned._batches["t", 0])
    segment = TieredSegment(0, 8, "s3://b/", "t/0.log", 0, len(data), 0, False, 0, len(data))
    here = Stores()
    monkeypatch.setattr(here, "reader", lambda *_: lambda at, size: data[at : at + size])
    wanted = OffsetRange("t", "id", 0, 0, 8)
    told = []

    def over_grpc(_):
        raise AssertionError("the object holds everything")

    batches = read_placed(
        wanted,
        Tiered("always"),
        lambda _: TieredSegments(0, 8, (segment,), False),
        over_grpc,
        here=here,
        on_corrupt=lambda *place: told.append(place[:2]),
    )
    assert [batch.header.base_offset for batch in batches] == [0, 3, 4, 6]
    assert told == [(5, 5)]  # 3 decompresses: its columns are looked at later
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    monkeypatch.setattr(here, "reader", lambda *_: lambda at, size: damaged[at : at + size])
    with pytest.raises(Exception, match="CRC"):
        list(
            read_placed(
                wanted,
                Tiered("always"),
                lambda _: TieredSegments(0, 8, (segment,), False),
                over_grpc,
                here=here,
                on_corrupt=lambda *_: None,
            )
        )


def test_the_sdk_still_raises_unless_told_otherwise(poisoned) -> None:
    batches = poisoned.fetch_batches("t", 0, 5, 8, topic_id=poisoned.describe_topic("t").topic_id)
    with pytest.raises(CorruptBatch, match="offset 5"):
        list(batches)
