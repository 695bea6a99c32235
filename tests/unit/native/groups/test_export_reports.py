"""Goal: what others write beside a group's offsets costs little and shows nothing untrue."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

from lakemq.plugins.native.groups.export_routes import _exports
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.wire.exports import ExportReport

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


def test_texts_and_topics_of_others_cost_little() -> None:
    garbage = [offset("t", number, GARBAGE) for number in range(3_000)]
    topics = [offset(f"t{number}", 0) for number in range(3_000)]
    group = pb.Group(name="export.x", offsets=[*garbage, *topics])
    began_s = time.process_time()
    assert list(_exports(group)) == []
    assert time.process_time() - began_s < 0.2
