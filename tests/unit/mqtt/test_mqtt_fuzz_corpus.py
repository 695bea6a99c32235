"""Goal: no input that fuzzing ever kept breaks anything again (`tests/fuzz/fuzz.py` finds them)."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzz import kept_inputs
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_kept_inputs(target: str) -> None:
    inputs = kept_inputs(target)
    assert len(inputs) >= 10
    for name, data in inputs.items():
        try:
            TARGETS[target](data)
        except Exception as error:
            raise AssertionError(f"{target} breaks on {name}") from error
