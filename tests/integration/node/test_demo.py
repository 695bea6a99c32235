"""The demo, on the first rows of its data: the real road, and what is said when it fails."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from examples.air_quality import demo, story
from examples.air_quality.readings import Figures, Reading, figures, parse

ROOT = Path(__file__).parents[3]
ROWS = 300
"""From 10 to 23 March 2004: the week of the picture is in it."""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.air_quality.demo", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_the_whole_road_on_real_readings(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = run("--rows", str(ROWS), "--folder", str(folder))

    assert done.returncode == 0, done.stdout + done.stderr
    readings = 13 * ROWS
    assert f"every one of {readings:,} readings is in the table exactly once" in done.stdout
    assert done.stdout.count(f"{readings:,} of {readings:,}") == 2, "acknowledged, and seen live"
    assert done.stdout.count("✓") == 13
    assert (folder / "week.png").read_bytes().startswith(b"\x89PNG")
    assert "Traceback" not in done.stdout + done.stderr
    assert "fork" not in done.stderr


def test_a_missing_java_is_one_clear_sentence_and_nothing_is_started(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = run("--folder", str(folder), PATH=str(tmp_path), JAVA_HOME="")

    assert done.returncode == 1
    assert done.stdout.startswith("demo: Spark needs Java 17 or newer")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    assert not folder.exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(demo.DemoFailed, match="is not empty"):
        demo.prepare(tmp_path)
    assert (tmp_path / "precious").read_text() == "mine"


class TableWithOneReadingLess:
    """Stands in for the Delta table after a reading was lost on the way."""

    version, files = 1, ("part.parquet",)

    def __init__(self, path: Path) -> None:
        with story.DATA.open() as lines:
            self._readings = {sensor: each[:ROWS] for sensor, each in parse(lines).items()}
        self._readings["t"].pop()

    def __enter__(self) -> TableWithOneReadingLess:
        return self

    def __exit__(self, *_: object) -> None: ...

    def figures(self) -> dict[str, Figures]:
        return {sensor: figures(each) for sensor, each in self._readings.items()}

    def readings(self) -> list[Reading]:
        return [reading for each in self._readings.values() for reading in each]

    def series(self, sensors: Any, start: str, end: str) -> dict[str, list[Any]]:
        return {sensor: [] for sensor in sensors}


def test_a_lost_reading_makes_the_demo_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(story, "AirTable", TableWithOneReadingLess)
    monkeypatch.setattr(story.Story, "_stream", lambda self, readings: None)

    assert story.Story(Console(file=shown, width=120), tmp_path, ROWS).tell() is False
    assert "They do not agree" in shown.getvalue()
    assert "1 reading lost, the first: t 2004-03-23T05:00:00 " in shown.getvalue()
    assert shown.getvalue().count("✗ differs") == 1

    monkeypatch.setattr(demo, "tell_story", lambda *_: False)
    assert demo.main([]) == 1
