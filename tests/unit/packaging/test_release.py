"""Goal: a release has the version, tag and changelog that it says it has."""

from __future__ import annotations

import pytest

from tools.release import notes, problems

CHANGELOG = """# Changelog

## Unreleased

## 1.2.0 (2027-01-31)

- **One**: thing.

## 1.2.0rc1

- Another.
"""


def test_what_agrees_is_released() -> None:
    assert problems("1.2.0", "v1.2.0", CHANGELOG, {}, "c0") == []
    assert problems("1.2.0", "v1.2.0", CHANGELOG, {"v1.2.0": "c0"}, "c0") == []
    assert problems("1.2.0rc1", "v1.2.0rc1", CHANGELOG, {}, "c0") == []
    assert notes(CHANGELOG, "1.2.0") == "- **One**: thing."


@pytest.mark.parametrize(
    ("version", "tag", "changelog", "tags", "said"),
    [
        ("1.2.0", "v1.3.0", CHANGELOG, {}, "must be v1.2.0"),
        ("1.2", "v1.2", CHANGELOG + "## 1.2\n\n- x\n", {}, "MAJOR.MINOR.PATCH"),
        ("1.2.0", "v1.2.0", CHANGELOG, {"v1.2.0": "c1"}, "released once"),
        ("1.1.0", "v1.1.0", CHANGELOG, {}, "no section '## 1.1.0'"),
        ("1.2.0", "v1.2.0", CHANGELOG.replace("ed\n", "ed\n- new\n"), {}, "under Unreleased"),
    ],
    ids=["tag", "version", "twice", "no-notes", "unreleased"],
)
def test_what_does_not_agree_is_told(
    version: str, tag: str, changelog: str, tags: dict[str, str], said: str
) -> None:
    (problem,) = problems(version, tag, changelog, tags, "c0")
    assert said in problem
