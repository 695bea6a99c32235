"""The scrub reads what is sealed, slowly, and notes what is damaged."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from lakemq.broker_core.api.types import TopicConfig
from lakemq.plugins.journal.maintenance import scrub as scrub_module
from lakemq.plugins.journal.maintenance.scrub import Scrub, check_some
from tests.unit.journal.rig import FOLDER, Rig


@pytest.fixture
def rig(loop: asyncio.AbstractEventLoop) -> Rig:
    """Ten records in batches of one, five to a segment: two sealed segments and a third."""
    rig = Rig(loop, config=TopicConfig(segment_max_bytes=500), tail_max_bytes=0)
    for number in range(11):
        rig.append_durably(b"value %d" % number)
    return rig


def run_once(rig: Rig, bytes_per_s: int = 1 << 30) -> None:
    async def in_thread(work: Callable[[], int]) -> int:
        return work()

    scrub = Scrub(
        lambda: [rig.log], rig.context.counters, in_thread, bytes_per_s=bytes_per_s, interval_s=1
    )
    rig.loop.run_until_complete(scrub.run_once())


def sealed_bytes(rig: Rig) -> int:
    return sum(each.size_bytes for each in rig.log.folder.manifest.segments)


def test_sound_segments_are_read_once(rig: Rig) -> None:
    run_once(rig)
    counters = rig.context.counters
    assert counters.scrubbed_bytes == sealed_bytes(rig) > 900
    assert counters.damages_found == 0 and rig.log.status().detail == ""


@pytest.mark.parametrize("step", [1, 200, 1 << 20])
@pytest.mark.parametrize("position", range(3, 470, 31))
def test_any_flipped_bit_is_found(
    rig: Rig, position: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub_module, "STEP_BYTES", step)
    rig.disk.flip_bit(rig.segment_path(1), position, position % 8)
    run_once(rig)
    run_once(rig)
    assert rig.log.damaged() == [5]
    assert rig.context.counters.damages_found == 1
    assert "are damaged" in rig.log.status().detail


def test_a_file_that_is_gone_or_cannot_be_read_is_found(rig: Rig) -> None:
    gone, unreadable = rig.segment_path(0), rig.segment_path(1)
    rig.disk.remove(gone)
    rig.disk.fault = lambda call, path: errno.EIO if (call, path) == ("read", unreadable) else 0
    run_once(rig)
    assert rig.log.damaged() == [0, 5]
    assert rig.context.counters.damages_found == 2


def test_what_was_deleted_meanwhile_is_no_damage(rig: Rig) -> None:
    segment = rig.log.folder.manifest.segments[0]
    rig.log.folder.start_at(6, 10)
    assert not rig.disk.exists(FOLDER / segment.log_name)
    assert check_some(rig.log.folder, segment, 0) == segment.size_bytes
    assert not rig.log.folder.damages


def test_it_reads_as_fast_as_it_may(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def note(delay_s: float) -> None:
        slept.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(scrub_module, "STEP_BYTES", 1)
    monkeypatch.setattr(scrub_module.asyncio, "sleep", note)
    run_once(rig, bytes_per_s=100)
    assert len(slept) == 10  # one for each batch
    assert sum(slept) == pytest.approx(sealed_bytes(rig) / 100)
