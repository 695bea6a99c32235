"""Goal: planted bugs are what they say they are, and those known to survive can be planted."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.__main__ import ROOT, known_survivors
from tests.mutants.modules import TESTS
from tests.mutants.operators import mutants

pytestmark = pytest.mark.slow

SOURCE = '''
"""A module."""
from __future__ import annotations

LIMIT: int = 5

def judge(value: int, other: int) -> bool:
    """Whether it fits."""
    if not value < LIMIT and other:
        raise ValueError(f"{value}")
    self.count = min(value, other) + 1
    note(value, other)
    return True
'''


def test_every_small_bug_is_planted_once() -> None:
    found = {each.name for each in mutants(SOURCE)}
    assert found == {
        "module: LIMIT: int = 5 -> LIMIT: int = 6",
        "judge: if not value < LIMIT and other: -> if not value < LIMIT or other:",
        "judge: if not value < LIMIT and other: -> if value < LIMIT and other:",
        "judge: if not value < LIMIT and other: -> if not value <= LIMIT and other:",
        "judge: raise ValueError(f'{value}') -> pass",
        "judge: self.count = min(value, other) + 1 -> pass",
        "judge: self.count = min(value, other) + 1 -> self.count = min(value, other) - 1",
        "judge: self.count = min(value, other) + 1 -> self.count = max(value, other) + 1",
        "judge: self.count = min(value, other) + 1 -> self.count = min(value, other) + 2",
        "judge: note(value, other) -> pass",
        "judge: note(value, other) -> note(other, value)",
        "judge: return True -> return False",
    }
    whole = ast.unparse(ast.parse(SOURCE))
    assert all(each.source != whole for each in mutants(SOURCE))


def test_names_do_not_change_with_other_lines() -> None:
    moved = "import os\n\n\n" + SOURCE.replace('"""A module."""\n', "")
    moved = moved.replace("from __future__ import annotations\n", "")
    assert {each.name for each in mutants(moved)} == {each.name for each in mutants(SOURCE)}


@pytest.mark.parametrize("module", TESTS)
def test_the_tests_of_a_module_are_there(module: str) -> None:
    assert (ROOT / module).exists()
    assert [name for name in TESTS[module] if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("module", known_survivors())
def test_known_survivors_are_bugs_that_can_be_planted(module: str) -> None:
    possible = {each.name for each in mutants((ROOT / module).read_text())}
    assert [name for name in known_survivors()[module] if name not in possible] == []
