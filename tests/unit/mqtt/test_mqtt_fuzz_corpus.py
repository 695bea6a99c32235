"""Goal: no input that fuzzing ever kept breaks anything again (`tests/fuzz/fuzz.py` finds them)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"


@pytest.mark.parametrize("target", TARGETS)
def test_kept_inputs(target: str) -> None:
    files = sorted((CORPUS / target).iterdir())
    assert len(files) >= 10
    for file in files:
        try:
            TARGETS[target](file.read_bytes())
        except Exception as error:
            raise AssertionError(f"{target} breaks on {file.name}") from error
