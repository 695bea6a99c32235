"""Goal: what two versions make of a record is told apart, in words that fit a line."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import PluginError
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import Columns, Principal
from lakemq.cli.plugins.outcomes import (
    Outcome,
    Refused,
    Stored,
    differing,
    kind_of,
    lines_of,
    outcomes_of,
)
from lakemq.cli.plugins.version_worker import PathPoint, Version, read_frame

RECORD = Stored(b"v", b"k", b"", 7)
NO, FAILED = Refused("refused", "no"), Refused("raised", "no")


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (RECORD, RECORD, "same"),
        (NO, NO, "same"),
        (RECORD, RECORD._replace(key=None), "changed"),
        (NO, Refused("refused", "never"), "changed"),
        (RECORD, NO, "refused"),
        (FAILED, NO, "refused"),
        (RECORD, FAILED, "raised"),
        (NO, FAILED, "raised"),
        (NO, RECORD, "accepted"),
        (FAILED, RECORD, "accepted"),
    ],
)
def test_kinds(before: Outcome, after: Outcome, kind: str) -> None:
    assert kind_of(before, after) == kind


def test_pieces_give_one_outcome_a_record() -> None:
    stored = Columns([b"a", b"c"], [None, None], [b"", b""], [1, 3])
    pieces = [(1, "stored", ""), (2, "refused", "no"), (1, "stored", "")]
    assert outcomes_of(pieces, stored) == [
        Stored(b"a", None, b"", 1), NO, NO, Stored(b"c", None, b"", 3),
    ]  # fmt: skip


def test_only_what_differs_is_shown() -> None:
    after = RECORD._replace(value=None, headers=encode_headers([("by", b"\xff")]))
    assert differing(RECORD, after) == (
        {"value": "v", "headers": []},
        {"value": None, "headers": [["by", "\\xff"]]},
    )
    assert list(lines_of(RECORD, after)) == [
        "  - value: v", "  - headers: []", "  + value: none", "  + headers: [['by', '\\\\xff']]",
    ]  # fmt: skip


def test_of_long_values_the_part_that_differs() -> None:
    long = b"x" * 500 + b"old" + b"y" * 500
    minus, plus = lines_of(
        RECORD._replace(value=long), RECORD._replace(value=long.replace(b"old", b"new"))
    )
    assert "xold" in minus and "xnew" in plus
    assert max(len(minus), len(plus)) < 150
    # Nothing that a terminal would obey.
    (_, plus) = lines_of(RECORD, RECORD._replace(value=b"\x1b[2J\n"))
    assert plus == "  + value: \\x1b[2J\\n"


def test_a_version_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginError, match="there is no such folder"):
        PathPoint("sized", tmp_path / "none")
    with pytest.raises(PluginError, match="no entry point 'lakemq.plugins' has 'sized'"):
        PathPoint("sized", tmp_path)
    project = tmp_path / "pyproject.toml"
    project.write_text("[project\n")
    with pytest.raises(PluginError, match="pyproject.toml: "):
        PathPoint("sized", tmp_path)
    project.write_text(
        '[project]\nversion = "3"\n[project.entry-points."lakemq.plugins"]\nsized = "a.b"\n'
    )
    found = PathPoint("sized", tmp_path)
    assert (found.module, found.version) == ("a.b", "3")
    # What the folder lacks is not taken from elsewhere.
    project.write_text(project.read_text().replace("a.b", "json"))
    monkeypatch.setattr("sys.path", list(sys.path))
    with pytest.raises(PluginError, match="there is no module json"):
        PathPoint("sized", tmp_path).load()


class Fails:
    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        raise ValueError("no")


def test_what_failed_before_changes_nothing() -> None:
    """A node would have quarantined it by then."""
    version = Version.__new__(Version)
    version.chain = [("x", Fails())]
    asked = {"topic": "t", "principal": "ann"}
    for _ in range(100):
        answered = read_frame(io.BytesIO(version.answer(asked, encode(Columns([b"v"])))))
        assert answered is not None
        assert answered[0]["pieces"] == [
            [1, "raised", "plugin x: its interceptor failed: ValueError: no"]
        ]
        assert answered[1] == b""
