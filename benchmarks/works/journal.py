"""The journal beside plain writes and reads of the same disk."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness.declare import Goal, Running, Sample, Side, Work
from benchmarks.harness.processes import asked, measuring_itself
from benchmarks.load import journal
from benchmarks.load.crew import crew, ready


@contextlib.contextmanager
def apart(folder: Path, opened, kind: str, count: int) -> Iterator[Running]:  # type: ignore[no-untyped-def]
    with measuring_itself(opened, folder, kind, count) as side:
        yield side


def sides(kind: str, raw: str, count: int = 1) -> tuple[Side, Side]:
    return (
        Side(
            "LakeMQ's journal", "", partial(apart, opened=journal.journal, kind=kind, count=count)
        ),
        Side("the disk", raw, partial(apart, opened=journal.raw, kind=kind, count=count)),
    )


@contextlib.contextmanager
def folder_alone(folder: Path) -> Iterator[Running]:
    yield Running(address=str(folder))


def start_after_kill(side: Running, seconds: float) -> Sample:
    """Fill, kill -9, drop the page cache, open again."""
    home = Path(side.address) / "journal"
    shutil.rmtree(home, ignore_errors=True)
    with crew() as members:
        pipe = members.start(journal.kept, home, seconds)
        ready([pipe])
        members.kill()
    journal.forget_page_cache(home)
    took = asyncio.run(journal.opened_in_s(home))
    return {"first_s": took}


WORKS = (
    Work(
        "journal-bulk",
        "journal",
        "Batches of 1,000 records of 50 to 200 bytes, 32 in flight, 1 partition. Records.",
        sides("bulk", "portions of 512 KiB, each written and fdatasynced"),
        asked,
    ),
    Work(
        "journal-read",
        "journal",
        "The same records read from files in the page cache, CRCs checked.",
        sides("read", "1 MiB at a time, nothing checked"),
        asked,
        seconds=1,
    ),
    Work(
        "journal-singles",
        "journal",
        "256 callers, each appends one record and waits for its fsync, 1 partition.",
        sides("singles", "one record after the other, each written and fdatasynced"),
        asked,
    ),
    Work(
        "journal-partitions",
        "journal",
        "10,000 single appends a second over 1,000 partitions, each fsynced.",
        sides("paced", "the same files as fast as eight threads write and fdatasync them", 1000),
        asked,
        (Goal("p99_ms", 100),),
        seconds=4,
    ),
    Work(
        "journal-start",
        "journal",
        "Start after `kill -9` with 4 GB in 1,000 partitions that are not in the page cache.",
        (Side("LakeMQ's journal", "", folder_alone),),
        start_after_kill,
        seconds=4,
        rounds=1,
        full=True,
        fresh=True,
    ),
)
