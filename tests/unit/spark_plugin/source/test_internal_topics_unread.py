"""Goal: a pattern reads no topic of the broker's own, not even an operator's `.*`: its job would
read what it causes, for ever. A topic that is named is the operator's choice."""

from __future__ import annotations

import pytest

from lakemq.spark_plugin.source.options import parse_options
from tests.unit.spark_plugin.routing.test_export_many import fill, job, many

pytest.importorskip("pyspark")
INTERNAL = ("__mqtt_retained", "_lakemq_offsets")


@pytest.fixture
def journal(memory):
    for name in (*INTERNAL, "air", "a__b"):
        fill(memory, name, 1)
    return memory


def view_of(**options: str) -> list[str]:
    from lakemq.spark_plugin.source.reader import BatchReader

    given = parse_options({"bootstrap": "memory", **options}, streaming=False)
    return sorted(BatchReader(given, ()).view())


def test_the_source_leaves_them_out_of_a_pattern(journal) -> None:
    assert view_of(subscribePattern=".*") == ["a__b", "air"]
    assert view_of(subscribePattern="__.*|air") == ["air"]
    assert view_of(subscribe="__mqtt_retained") == ["__mqtt_retained"]


def test_an_export_leaves_them_out_of_a_pattern(journal, tmp_path) -> None:
    made, told = job(many(tmp_path, "delta"), ".*")
    made.run()
    assert sorted(each.topic for each in told) == ["a__b", "air"]
