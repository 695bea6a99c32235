"""Goal: docs/versions.md says what this code writes to disk and reads, and on what it runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from lakemq.broker_core.api.records import batch
from lakemq.broker_core.groups import held_offsets, offset_table
from lakemq.broker_core.queues import snapshot
from lakemq.broker_core.scheduling import formats as scheduling
from lakemq.broker_core.transactions import formats as transactions
from lakemq.data_folder import FORMAT
from lakemq.meta_service.catalog.command_codec import FEATURE_LEVEL
from lakemq.meta_service.raft.log.log_format import LOG_VERSION
from lakemq.plugins.journal.segment import checkpoint, index, manifest, sums
from lakemq.plugins.ledger import device_table
from lakemq.plugins.mqtt.bridge import state_log
from lakemq.plugins.mqtt.state import stored_values

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "versions.md").read_text()
WRITTEN = {
    "data folder (`node.json`, `storage.json`)": FORMAT,
    "record batch": batch.VERSION,
    "journal: manifest": manifest.VERSION,
    "journal: checkpoint": checkpoint.VERSION,
    "journal: index": index.VERSION,
    "journal: sums": sums.VERSION,
    "Raft log": LOG_VERSION,
    "catalog: feature level": FEATURE_LEVEL,
    "staged batches": transactions._VERSION,
    "offsets that wait for the end of a transaction": held_offsets._VERSION,
    "committed offsets": offset_table._VERSION,
    "queues": snapshot._VERSION,
    "delayed records": scheduling._VERSION,
    "MQTT sessions, retained messages": stored_values.VERSION,
    "bridges": state_log.VERSION,
    "ledger": device_table._VERSION,
}


def rows() -> dict[str, tuple[str, str]]:
    """What is stored -> (written, read)."""
    section = PAGE.split("## What is on disk")[1].split("\n## ")[0]
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", section)
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0]: (cells[1], cells[2]) for cells in lines[1:]}


def test_all_that_is_stored_is_there() -> None:
    assert rows().keys() == WRITTEN.keys()


@pytest.mark.parametrize("what", sorted(WRITTEN))
def test_what_is_written_and_read(what: str) -> None:
    written, read = rows()[what]
    assert written == str(WRITTEN[what])
    assert written in read.split(", ")


def test_every_python_that_is_promised_is_checked() -> None:
    """In the page, in what an index shows, and by CI."""
    (line,) = re.findall(r"^\| Python \| (.+?):", PAGE, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    shown = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert line.split(", ") == shown
    (checked,) = re.findall(
        r"^ +python: (\[.+\])$", (ROOT / ".github/workflows/ci.yml").read_text(), re.MULTILINE
    )
    assert re.findall(r"3\.\d+", checked) == shown
    assert project["requires-python"] == f">={shown[0]}"
