"""Goal: the log's start moves forward durably, frees what it can, and never moves back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lakemq.broker_core.api.errors import OffsetOutOfRange, Unavailable
from lakemq.broker_core.api.types import Offset, TopicConfig
from lakemq.plugins.journal.maintenance.housekeeping import retain
from tests.unit.journal.rig import FOLDER, Rig


@pytest.fixture
def make_rig(loop: asyncio.AbstractEventLoop) -> Callable[..., Rig]:
    def make(**config: object) -> Rig:
        more = {"segment_max_bytes": 400, "retention_ms": None} | config
        return Rig(loop, config=TopicConfig(**more), tail_max_bytes=0)  # type: ignore[arg-type]

    return make


def delete(rig: Rig, before: int) -> int:
    return rig.loop.run_until_complete(rig.log.delete_records(Offset(before)))


def filled(make_rig: Callable[..., Rig], **config: object) -> Rig:
    rig = make_rig(**config)
    for number in range(30):
        rig.append_durably(b"%02d" % number)
    return rig


def test_the_start_outlives_a_loss_of_power_and_segments_go(make_rig: Callable[..., Rig]) -> None:
    rig = filled(make_rig)
    before = rig.log.folder.size_bytes()
    assert delete(rig, 17) == 17
    assert rig.log.folder.size_bytes() < before
    names = {name for name in rig.disk.names(FOLDER) if name.endswith(".log")}
    assert names == {each.log_name for each in rig.log.folder.manifest.segments}
    assert rig.lose_power().log_start_offset == 17
    with pytest.raises(OffsetOutOfRange):
        rig.fetch(16)
    assert rig.fetch(17).next_offset > 17


def test_it_never_moves_back_nor_behind_the_high_watermark(make_rig: Callable[..., Rig]) -> None:
    rig = filled(make_rig)
    delete(rig, 12)
    assert delete(rig, 3) == 12
    for wrong in (31, -1):
        with pytest.raises(OffsetOutOfRange):
            delete(rig, wrong)
    assert delete(rig, 30) == 30
    assert rig.append_durably(b"on").base_offset == 30
    assert rig.lose_power().log_start_offset == 30
    assert rig.log.high_watermark == 31


@pytest.mark.parametrize("cleanup", ["delete", "compact"])
def test_what_a_start_still_needed_goes_with_retention(
    make_rig: Callable[..., Rig], cleanup: str
) -> None:
    rig = filled(make_rig, cleanup=cleanup)
    rig.log._writer.checkpoint_offset = 0  # as if no checkpoint had been durable so far
    segments = len(rig.log.folder.manifest.segments)
    delete(rig, 17)
    assert len(rig.log.folder.manifest.segments) == segments
    assert retain(rig.log.folder, rig.config, rig.now, 30) > 0
    assert rig.log.folder.manifest.segments[0].next_offset > 17
    assert rig.log.log_start_offset == 17


def test_a_closed_log_is_left_alone(make_rig: Callable[..., Rig]) -> None:
    rig = filled(make_rig)
    rig.loop.run_until_complete(rig.log.close())
    with pytest.raises(Unavailable):
        delete(rig, 5)
    assert rig.log.log_start_offset == 0
