"""Goal: one process, one node, one data folder."""

import json
from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import StartupError
from lakemq.data_folder import DataFolder, storage_id


def test_second_owner_is_told_who_holds_it(tmp_path: Path) -> None:
    first = DataFolder(tmp_path, "n")
    first.open()
    with pytest.raises(StartupError, match=r"is in use by process \d+"):
        DataFolder(tmp_path, "n").open()
    first.close()
    again = DataFolder(tmp_path, "n")
    again.open()
    again.close()


def test_a_refused_folder_is_not_left_locked(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path, "n")
    folder.open()
    folder.close()
    with pytest.raises(StartupError, match="belongs to node 'n', this is 'm'"):
        DataFolder(tmp_path, "m").open()
    folder.open()
    folder.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is damaged"),
        ("[]", "is damaged"),
        ('{"format": 1}', "is damaged"),
        (json.dumps({"format": 2, "node_id": "n"}), "format 2; this build writes 1"),
    ],
)
def test_damaged_or_newer_identity(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "node.json").write_text(text)
    with pytest.raises(StartupError, match=why):
        DataFolder(tmp_path, "n").open()


def test_a_storage_id_is_drawn_once(tmp_path: Path) -> None:
    drawn = storage_id(tmp_path / "a" / "journal")
    assert len(bytes.fromhex(drawn)) == 16
    assert storage_id(tmp_path / "a" / "journal") == drawn
    assert storage_id(tmp_path / "b" / "journal") != drawn
    assert [file.name for file in (tmp_path / "a" / "journal").iterdir()] == ["storage.json"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is damaged: .* another disk"),
        ("[]", "is damaged: .* another disk"),
        ('{"format": 1}', "is damaged: .* another disk"),
        ('{"format": 1, "storage_id": "x"}', "32 hex digits.* another disk"),
        ('{"format": 2, "storage_id": ""}', "format 2; this build writes 1"),
    ],
)
def test_a_damaged_storage_id_is_not_replaced(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "storage.json").write_text(text)
    with pytest.raises(StartupError, match=why):
        storage_id(tmp_path)


def test_a_new_folder_is_not_for_everybody(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "new", "n")
    folder.open()
    folder.close()
    assert (tmp_path / "new").stat().st_mode & 0o007 == 0
