"""Goal: an export tells the broker how far it is, in a form that the broker knows again, and goes
on where that fails."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("pyarrow")

from lakemq.broker_core.api.groups.types import METADATA_MAX_BYTES
from lakemq.plugins.native.sdk import NotAuthorized, TopicPartition
from lakemq.plugins.native.wire.exports import ExportReport
from lakemq.spark_plugin.broker_reports import BrokerReports
from lakemq.spark_plugin.export.job.report import CommitReport
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.tables.target import Target

SETTINGS = ExportSettings("memory", "air", Target("delta", "s3://lake/air"), "nightly")
REPORT = CommitReport(
    attempt=4, rows=90, files=1, size_bytes=700, offsets={1: 5, 0: 8}, lag=10, dead_letters=2,
    job_s=1.25, commit_s=0.25, records=92, offset_count=10,
)  # fmt: skip


def test_the_broker_knows_again_what_is_told() -> None:
    said = []

    def reset_offsets(group, offsets, metadata=""):
        said.append((group, offsets, ExportReport.of_text(metadata) if metadata else None))

    client = SimpleNamespace(reset_offsets=reset_offsets)
    BrokerReports(lambda bootstrap, access: client).committed(SETTINGS, REPORT)
    told = ExportReport("s3://lake/air", "delta", 4, 90, 2, 700, 1500)
    assert said == [
        ("export.nightly", {TopicPartition("air", 0): 8}, told),
        ("export.nightly", {TopicPartition("air", 1): 5}, None),
    ]


def test_an_export_goes_on_where_telling_fails(caplog: pytest.LogCaptureFixture) -> None:
    def refused(bootstrap, access):
        raise NotAuthorized("ann may not read group:export.nightly")

    reports = BrokerReports(refused)
    with caplog.at_level(logging.WARNING, "lakemq.spark"):
        for _ in range(3):
            reports.committed(SETTINGS, REPORT)
    assert [record.getMessage() for record in caplog.records] == [
        "air: the broker does not list this export: ann may not read group:export.nightly"
    ]


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "[" * 4000, "{}", '{"table": "t"}',
     ExportReport("t", "delta", 1, 1, 1, 1, 1).to_text().replace("delta", "csv"),
     ExportReport("t", "delta", 1, 1, 1, 1, -1).to_text(),
     ExportReport("t", "delta", 1, 1, 1, 1, 2**63).to_text(),
     json.dumps({**json.loads(ExportReport("t", "delta", 1, 1, 1, 1, 1).to_text()), "rows": True})],
)  # fmt: skip
def test_other_texts_are_none(text: str) -> None:
    assert ExportReport.of_text(text) is None


@pytest.mark.parametrize("letter", ["t", "é", "\0", "\U0001f600", "\udc80"])
def test_a_long_name_of_a_table_is_cut(letter: str) -> None:
    told = ExportReport(letter * 5000, "iceberg", 2**62, 2**62, 2**62, 2**62, 2**62).to_text()
    assert len(told.encode()) <= METADATA_MAX_BYTES
    found = ExportReport.of_text(told)
    assert found is not None and len(found.table) == 500
