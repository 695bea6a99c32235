"""`lakemq journal verify|dump|stats` on real folders, whole and damaged."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakemq.broker_core.api.records.batch import ProducerStamp, read_header, stamp
from lakemq.broker_core.api.types import TopicConfig, TopicInfo
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from lakemq.plugins.journal.tools.commands import journal_app
from lakemq.testing.storage import append, batch_of, open_alone
from tests.unit.journal.rig import until

TOPIC = TopicInfo("sensors", "e" * 32, 2, TopicConfig(segment_max_bytes=1300, retention_ms=None))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    async def fill() -> None:
        storage = JournalStorage(tmp_path / "journal", JournalSettings(index_interval_bytes=1024))
        await storage.start()
        log = await open_alone(storage, TOPIC, 1)
        for number in range(40):
            stamp = ProducerStamp(3, 0, 3 * number)
            await append(
                log, batch_of(b"%d" % number, b"\xff", None, keys=[b"k", None, b""], producer=stamp)
            )
        await storage.stop()

    asyncio.run(fill())
    return tmp_path


def folder(data_dir: Path) -> Path:
    return data_dir / "journal" / "topics" / TOPIC.topic_id / "1"


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(journal_app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def segments(data_dir: Path, suffix: str = ".log") -> list[Path]:
    return sorted(folder(data_dir).glob(f"*{suffix}"))


@pytest.mark.parametrize("inner", ["", "journal"])
def test_verify_finds_nothing_wrong(data_dir: Path, inner: str) -> None:
    assert len(segments(data_dir)) > 2
    assert run("verify", data_dir / inner) == (
        0, "1 partitions, 120 records, 0 errors, 0 warnings\n",
    )  # fmt: skip


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


def test_verify_reports_an_epoch_that_falls(data_dir: Path) -> None:
    """The second batch of a segment is given an epoch below that of the first (1)."""
    path = segments(data_dir)[1]
    data = path.read_bytes()
    at = read_header(data).total_bytes
    header = read_header(data, at)
    size = header.total_bytes
    _, batch = stamp(data[at : at + size], header, header.base_offset, 0)
    path.write_bytes(data[:at] + batch + data[at + size :])
    code, output = run("verify", data_dir)
    assert code == 1 and f"{path.name} position {at}: epoch 0 behind epoch 1" in output


def test_verify_reports_a_flipped_bit(data_dir: Path) -> None:
    flip(segments(data_dir)[1], 100)
    code, output = run("verify", data_dir)
    assert code == 1
    assert f"{segments(data_dir)[1].name} position 0.." in output and "are damaged" in output
    assert "117 records, 1 errors" in output


def test_verify_in_json(data_dir: Path) -> None:
    flip(segments(data_dir)[0], 100)
    code, output = run("verify", data_dir, "--json")
    first, summary = [json.loads(line) for line in output.splitlines()]
    assert (code, first["severity"], summary["errors"]) == (1, "error", 1)


@pytest.mark.parametrize(
    ("name", "severity", "text"),
    [
        ("index", "warning", "cannot be read"), ("checkpoint", "warning", "cannot be read"),
        ("manifest", "error", "the manifest cannot be read"),
    ],
)  # fmt: skip
def test_verify_reports_damaged_files(data_dir: Path, name: str, severity: str, text: str) -> None:
    path = segments(data_dir, ".index")[0] if name == "index" else folder(data_dir) / name
    flip(path, 50)
    code, output = run("verify", data_dir)
    assert code == (severity == "error")
    assert severity in output and text in output


def test_verify_reports_an_index_that_points_astray(data_dir: Path) -> None:
    from lakemq.plugins.journal.segment.index import decode_index, encode_index

    path = segments(data_dir, ".index")[0]
    index = decode_index(path.read_bytes(), 1)
    index.positions[-1] += 1
    path.write_bytes(encode_index(index))
    code, output = run("verify", data_dir)
    assert code == 1 and "points to places where no batch begins" in output


def test_verify_reports_what_is_missing_short_or_stray(data_dir: Path) -> None:
    first, second, *_, last = segments(data_dir)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-10])
    last.write_bytes(last.read_bytes() + b"torn")
    segments(data_dir, ".index")[2].unlink()
    (folder(data_dir) / "99999999999999999999-000000.log").write_bytes(b"")
    code, output = run("verify", data_dir)
    assert code == 1
    for text in (
        f"error: {folder(data_dir)}: {first.name} is missing",
        f"{second.name} has ",
        f"warning: {folder(data_dir)}: {last.name}: 4 bytes behind position",
        "index is missing; it is rebuilt",
        "99999999999999999999-000000.log does not belong to the log",
    ):
        assert text in output


def test_stats(data_dir: Path) -> None:
    code, output = run("stats", data_dir, "--json")
    (row,) = [json.loads(line) for line in output.splitlines()]
    assert code == 0
    assert row["topic"] == "sensors" and row["partition"] == 1 and row["producers"] == 1
    assert (row["start_offset"], row["end_offset"], row["records"]) == (0, 120, 120)
    assert row["bytes"] == sum(path.stat().st_size for path in segments(data_dir))
    assert row["codecs"] == "none" and row["newest"] == "1970-01-01T00:00:01.000+00:00"
    code, output = run("stats", data_dir)
    header, line = output.splitlines()
    assert header.split()[:2] == ["topic", "partition"] and "sensors" in line and "120" in line
    assert run("stats", data_dir, "--topic", "other", "--json") == (0, "")


def test_dump_shows_batches_and_records(data_dir: Path) -> None:
    code, output = run("dump", folder(data_dir), "--offset", "61", "--count", "2")
    found = [json.loads(line) for line in output.splitlines()]
    assert code == 0 and [batch["base_offset"] for batch in found] == [60, 63]
    code, output = run("dump", segments(data_dir)[0], "--records", "--count", "1")
    assert [json.loads(line) for line in output.splitlines()] == [
        {"offset": 0, "timestamp_ms": 1000, "key": "k", "value": "0"},
        {"offset": 1, "timestamp_ms": 1000, "key": None, "value": {"hex": "ff"}},
        {"offset": 2, "timestamp_ms": 1000, "key": "", "value": None},
    ]


def test_dump_shows_damage(data_dir: Path) -> None:
    flip(segments(data_dir)[0], 10)
    _, output = run("dump", segments(data_dir)[0])
    first = json.loads(output.splitlines()[0])
    assert first["damage"]["position"] == 0 and "CRC" in first["damage"]["reason"]


@pytest.mark.parametrize("command", ["verify", "stats", "dump"])
def test_a_folder_without_journal_is_a_clear_error(tmp_path: Path, command: str) -> None:
    code, output = run(command, tmp_path)
    assert code == 2 and output.startswith("lakemq: ")


@pytest.fixture
def tiered(tmp_path: Path) -> Path:
    """Two partitions alike; of each some segments are in the store only, some here too."""
    options = JournalSettings(
        tiering_url=(tmp_path / "store").as_uri(), tiering_local_bytes=2500,
        maintenance_interval_ms=100, free_min_bytes=0,
    )  # fmt: skip

    async def fill() -> None:
        storage = JournalStorage(tmp_path / "journal", options)
        await storage.start()
        for partition in range(2):
            log = await open_alone(storage, TOPIC, partition)
            for number in range(14):
                value = b"%300d of %d" % (number, partition)
                data = batch_of(value, times=[2_000_000_000_000])
                await append(log, data)
            path = log.folder.path
            await until(
                lambda path=path, log=log: (  # type: ignore[misc]
                    all(segment.remote for segment in log.folder.manifest.segments[:-1])
                    and not log.folder.manifest.segments[0].local
                    and not (path / log.folder.manifest.segments[0].log_name).exists()
                )
            )
        await storage.stop()

    asyncio.run(fill())
    return tmp_path


def stored(data_dir: Path, partition: int) -> list[Path]:
    return sorted((data_dir / "store" / TOPIC.topic_id / str(partition)).glob("*.log"))


def test_verify_reads_objects_too(tiered: Path) -> None:
    assert run("verify", tiered) == (0, "2 partitions, 28 records, 0 errors, 0 warnings\n")
    code, output = run("verify", tiered, "--no-remote")
    assert code == 0 and " 28 records" not in output


@pytest.mark.parametrize("forget", [False, True])
def test_verify_names_a_swapped_object(tiered: Path, forget: bool) -> None:
    first, *_, last = stored(tiered, 1)
    assert not (folder(tiered) / first.name).exists() and (folder(tiered) / last.name).exists()
    for mine in (first, last):
        mine.write_bytes((tiered / "store" / TOPIC.topic_id / "0" / mine.name).read_bytes())
    if forget:
        for path in segments(tiered, ".sums"):
            path.unlink()
    code, output = run("verify", tiered)
    lines = [line for line in output.splitlines() if line.startswith("error")]
    assert code == 1 and len(lines) == 2
    for line, mine in zip(lines, (first, last), strict=True):
        assert line.startswith(f"error: {folder(tiered)}: {mine.name} in the object store: ")
        assert f"{mine.as_uri()} is not the object that was stored" in line


def test_verify_tells_missing_and_unreachable_objects(tiered: Path) -> None:
    stored(tiered, 1)[0].unlink()
    code, output = run("verify", tiered)
    assert code == 1 and f"{stored(tiered, 1)[0].parent}" in output and "is missing" in output
    config = tiered / "lakemq.toml"
    config.write_text("[plugins.journal]\ntiering_options = 3\n")
    code, output = run("verify", tiered, "--config", config)
    assert code == 2 and "plugins.journal.tiering_options" in output
