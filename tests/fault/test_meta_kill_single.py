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

from meta_service.api.settings import MetaSettings
from meta_service.server.member import MetaMember

pytestmark = pytest.mark.fault


def write_until_killed(folder: Path, acked: Path, log_bytes_max: int, run: int, s: float) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.support.meta_writer",
            str(folder),
            str(acked),
            str(log_bytes_max),
            str(run),
        ],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(s)
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


@pytest.mark.parametrize("log_bytes_max", [64 * 1024 * 1024, 100_000])
async def test_nothing_acknowledged_is_lost(tmp_path: Path, log_bytes_max: int) -> None:
    """The second size makes snapshots and compactions follow each other without a pause."""
    dice = random.Random(log_bytes_max)
    folder, acked = tmp_path / "meta", tmp_path / "acked"
    for run in range(3):
        write_until_killed(folder, acked, log_bytes_max, run, dice.uniform(0.2, 0.8))
    rows = await stored(folder)
    promises = [line.split() for line in acked.read_text().splitlines()]
    assert len(promises) > 500
    missing = [key for key, revision in promises if rows.get(key) != int(revision)]
    assert missing == []
    if log_bytes_max == 100_000:
        assert list(folder.glob("snapshot-*")), "no snapshot was ever made"


async def test_a_power_cut_that_takes_the_stores_tail_is_healed_by_the_log(tmp_path: Path) -> None:
    """RocksDB's own log is not synced: cut it off, and the Raft log replays the rest."""
    folder, acked = tmp_path / "meta", tmp_path / "acked"
    write_until_killed(folder, acked, 64 * 1024 * 1024, 0, 0.5)
    (wal,) = sorted((folder / "store").glob("*.log"))
    data = wal.read_bytes()
    wal.write_bytes(data[: len(data) // 3])
    rows = await stored(folder)
    promises = [line.split() for line in acked.read_text().splitlines()]
    assert len(promises) > 100
    assert [key for key, revision in promises if rows.get(key) != int(revision)] == []
