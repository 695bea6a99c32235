"""kill -9 a process that appends, again and again: what it had acknowledged is there.

The child prints each acknowledged value; the parent kills it by its own id in the middle of its
work, opens the journal itself and compares.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from lakemq.broker_core.api.types import TopicConfig, TopicInfo
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from lakemq.testing.storage import open_alone, read_all

TOPIC = TopicInfo("t", "d" * 32, 2, TopicConfig(segment_max_bytes=64 * 1024, retention_ms=None))

LIVES = int(os.environ.get("LAKEMQ_KILLS", "3"))

CHILD = """
import asyncio, sys
from pathlib import Path
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from lakemq.testing.storage import append, batch_of, open_alone
from tests.fault.journal.test_journal_kill import TOPIC

async def main(folder, life):
    storage = JournalStorage(Path(folder), JournalSettings(checkpoint_interval_bytes=65536))
    await storage.start()
    logs = [await open_alone(storage, TOPIC, number) for number in (0, 1)]
    async def caller(number):
        log, count = logs[number % 2], 0
        while True:
            value = b"%d-%d-%d" % (life, number, count)
            answer = await append(log, batch_of(value + b"." * (count * 97 % 700)))
            sys.stdout.write(f"{number % 2} {answer.base_offset} {value.decode()}\\n")
            sys.stdout.flush()
            count += 1
    await asyncio.gather(*(caller(number) for number in range(16)))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.fault
def test_acknowledged_records_survive_kill(tmp_path: Path) -> None:
    rng = random.Random(20_26)
    acknowledged: dict[tuple[int, int], str] = {}
    for life in range(LIVES):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(life)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        lines = rng.randrange(200, 2000)
        output = b"".join(child.stdout.readline() for _ in range(lines))
        child.kill()
        output += child.stdout.read()
        child.stdout.close()
        child.wait()
        for line in output.split(b"\n")[:-1]:
            partition, offset, value = line.decode().split(" ")
            assert acknowledged.setdefault((int(partition), int(offset)), value) == value
        asyncio.run(check(tmp_path, acknowledged))
    assert len(acknowledged) > 1000


async def check(folder: Path, acknowledged: dict[tuple[int, int], str]) -> None:
    storage = JournalStorage(folder, JournalSettings())
    await storage.start()
    for partition in (0, 1):
        log = await open_alone(storage, TOPIC, partition)
        found = await read_all(log)
        assert [record.offset for record in found] == list(range(len(found)))
        values = [(record.value or b"").rstrip(b".").decode() for record in found]
        assert len(set(values)) == len(values), "a record is there twice"
        for (number, offset), value in acknowledged.items():
            if number == partition:
                assert values[offset] == value
        assert log.status().state == "online"
    await storage.stop()
