"""The cluster's demo, on the first rows of its data, and what is said when it can't run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROWS = 150


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lakemq", "cluster", "demo", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=230, check=False,
    )  # fmt: skip


@pytest.mark.fault
@pytest.mark.timeout(240)
def test_a_node_is_killed_and_every_reading_is_counted(tmp_path: Path) -> None:
    done = run("--rows", str(ROWS), "--folder", str(tmp_path / "demo"), cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"kill -9 \d+", done.stdout)
    assert f"every one of {13 * ROWS:,} acknowledged readings is stored" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert sorted(each.name for each in (tmp_path / "demo").iterdir()) == ["n1", "n2", "n3"]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    done = run("--folder", str(tmp_path))
    assert done.returncode == 1
    assert "is not empty" in done.stdout
    assert (tmp_path / "precious").read_text() == "mine"


def test_fewer_nodes_than_replicas_are_refused() -> None:
    done = run("--nodes", "2")
    assert done.returncode == 2
    assert "--nodes" in done.stderr
