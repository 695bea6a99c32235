"""A single member is killed with SIGKILL while it writes: nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.server.member import MetaMember

pytestmark = pytest.mark.fault
SMALL = 100_000


def write_until_killed(
    folder: Path, acked: Path, log_max_bytes: int, run: int, promises: int
) -> None:
    """Killed as soon as so many writes more were acknowledged, and a small log was shortened."""
    before = acked.read_bytes().count(b"\n") if acked.exists() else 0
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.support.meta.writer",
            str(folder),
            str(acked),
            str(log_max_bytes),
            str(run),
        ],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 120
        while acked.read_bytes().count(b"\n") < before + promises or (
            log_max_bytes <= SMALL and not list(folder.glob("snapshot-*"))
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


async def stored(folder: Path) -> dict[str, int]:
    member = MetaMember(MetaSettings(port=0), node_id="n1", host="127.0.0.1", data_dir=folder)
    await member.start()
    try:
        _, rows = await member.client().scan(b"")
        return {row.key.decode(): row.mod_revision for row in rows}
    finally:
        await member.stop()


@pytest.mark.parametrize("log_max_bytes", [64 * 1024 * 1024, SMALL])
async def test_nothing_acknowledged_is_lost(tmp_path: Path, log_max_bytes: int) -> None:
    """The second size makes snapshots and compactions follow each other without a pause."""
    rng = random.Random(log_max_bytes)
    folder, acked = tmp_path / "meta", tmp_path / "acked"
    for run in range(3):
        write_until_killed(folder, acked, log_max_bytes, run, rng.randint(300, 1500))
    rows = await stored(folder)
    promises = [line.split() for line in acked.read_text().splitlines()]
    assert len(promises) > 900
    missing = [key for key, revision in promises if rows.get(key) != int(revision)]
    assert missing == []


async def test_a_power_cut_that_takes_the_stores_tail_is_healed_by_the_log(tmp_path: Path) -> None:
    """RocksDB's own log is not synced: cut it off, and the Raft log replays the rest."""
    folder, acked = tmp_path / "meta", tmp_path / "acked"
    write_until_killed(folder, acked, 64 * 1024 * 1024, 0, 500)
    (wal,) = sorted((folder / "store").glob("*.log"))
    data = wal.read_bytes()
    wal.write_bytes(data[: len(data) // 3])
    rows = await stored(folder)
    promises = [line.split() for line in acked.read_text().splitlines()]
    assert len(promises) >= 500
    assert [key for key, revision in promises if rows.get(key) != int(revision)] == []
