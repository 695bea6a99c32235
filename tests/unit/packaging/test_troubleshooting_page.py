"""Goal: docs/troubleshooting.md has every error that users can meet, with the texts of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import lakemq
from lakemq.broker_core.api.errors import BY_CODE
from lakemq.plugins.mqtt.wire.reasons import FAILURE, Reason
from lakemq.spark_plugin import errors as of_spark

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
CODE = ("broker_core", "lakemq", "meta_service", "plugins", "spark_plugin")
WITHIN = {"UNDECIDED"}
"""Codes that never leave the broker."""
GAP = "…"


def test_every_error_is_there_with_its_code() -> None:
    public = [getattr(lakemq, name) for name in lakemq.__all__]
    errors = {
        each for each in public if isinstance(each, type) and issubclass(each, lakemq.LakeMQError)
    }
    ours = {each for each in BY_CODE.values() if each.__module__ == "lakemq.broker_core.api.errors"}
    assert len(errors) > 30
    for error in errors | ours:
        if error.code not in WITHIN:
            row = rf"`{error.__name__}`[, ]*\(?(code )?`{error.code}`"
            assert re.search(row, PAGE), f"{error.__name__} ({error.code})"
    for name, each in vars(of_spark).items():
        if isinstance(each, type) and each.__module__ == of_spark.__name__:
            assert f"| `{name}` |" in PAGE, name


def test_every_reason_code_that_is_sent_is_there() -> None:
    sent = {
        Reason[name]
        for file in (ROOT / "plugins" / "mqtt").rglob("*.py")
        for name in re.findall(r"\bReason\.([A-Z][A-Z_]+)", sending(file.read_text()))
    }
    wanted = {each for each in sent if each >= FAILURE}
    assert len(wanted) > 20
    for each in wanted:
        assert f"0x{each:02X} " in PAGE, each.name


def sending(source: str) -> str:
    """Without the tables of codes that may not come in some packets."""
    return source.split("def publish_reason")[-1]


def test_the_code_says_what_is_quoted() -> None:
    said = list(quoted())
    assert len(said) > 70
    templates = texts()
    for quote in said:
        pieces = [re.escape(each.strip()) for each in quote.split(GAP) if each.strip()]
        assert sum(map(len, pieces)) >= 5, f"too little of a text: {quote}"
        pattern = re.compile(".*".join(pieces))
        assert pattern.search(templates), f"the code nowhere says: {quote}"


def quoted() -> Iterator[str]:
    """The cells below `it says`."""
    column: int | None = None
    for line in PAGE.splitlines():
        cells = [each.strip() for each in line.strip("|").split(" | ")]
        if line.startswith("|---"):
            continue
        if not line.startswith("|"):
            column = None
        elif "it says" in cells:
            column = cells.index("it says")
        elif column is not None and cells[column].startswith("`"):
            yield cells[column].strip("`")


@cache
def texts() -> str:
    """Every text in the code, one a line, with a gap for each value in it."""
    found: list[str] = []
    for folder in CODE:
        for file in (ROOT / folder).rglob("*.py"):
            if "_pb2" not in file.name and not file.parent.is_symlink():
                nodes = list(ast.walk(ast.parse(file.read_text())))
                docstrings = {id(each.value) for each in nodes if isinstance(each, ast.Expr)}
                told = (text_of(each) for each in nodes if id(each) not in docstrings)
                found += (text.replace("\n", " ") for text in told if text)
    return "\n".join(found)


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(each) or GAP for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return ""
