"""Goal: what others write beside a group's offsets costs little and shows nothing untrue."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

import pytest

from lakemq.plugins.native.groups.export_routes import _TEXTS_MAX, _exports
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.wire.exports import ExportReport
from tests.support.growth import grows_linearly

REPORT = ExportReport("/t", "delta", 3, 10, 0, 1000, 50)
GARBAGE = "[" * 4000


def offset(topic: str, partition: int, metadata: str = "") -> pb.GroupOffset:
    return pb.GroupOffset(
        topic=topic, partition=partition, committed_offset=5, metadata=metadata
    )  # fmt: skip


def test_one_export_of_each_topic_with_a_report() -> None:
    offsets = [
        offset("b", 0), offset("b", 1, REPORT.to_text()), offset("a", 0, REPORT.to_text()),
        offset("c", 0, GARBAGE), offset("d", 0),
        offset("f", 0, json.dumps({**asdict(REPORT), "table": "\ud800"})),
        pb.GroupOffset(topic="e", committed_offset=-1, metadata=REPORT.to_text()),
    ]  # fmt: skip
    found = list(_exports(pb.Group(name="export.x", offsets=offsets)))
    assert [(each.topic, len(each.offsets)) for each in found] == [("a", 1), ("b", 2)]
    assert all(each.report == REPORT for each in found)


def test_few_texts_of_others_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []

    def of_text(text: str) -> ExportReport | None:
        looked_at.append(text)
        return None

    monkeypatch.setattr(ExportReport, "of_text", of_text)
    group = pb.Group(name="export.x", offsets=[offset("t", n, GARBAGE) for n in range(3_000)])
    assert list(_exports(group)) == []
    assert 1 <= len(looked_at) <= _TEXTS_MAX


def test_texts_and_topics_of_others_cost_little() -> None:
    def group(size: int) -> Callable[[], object]:
        garbage = [offset("t", number, GARBAGE) for number in range(size)]
        topics = [offset(f"t{number}", 0) for number in range(size)]
        found = pb.Group(name="export.x", offsets=[*garbage, *topics])
        assert list(_exports(found)) == []
        return lambda: list(_exports(found))

    grows_linearly(group, 500)
