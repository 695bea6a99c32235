"""Goal: each line of the production checklist links to where it is explained, and the commands and
metrics that it names are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from typer.main import get_command

from lakemq.cli import commands as cli

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "production-checklist.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| check")
]


def test_each_line_says_where_and_how() -> None:
    assert len(ROWS) > 25
    cli.add_plugin_commands()
    root = get_command(cli.app)
    metrics = set(re.findall(r"`(\w+)`", (DOCS / "metrics.md").read_text()))
    for _, where, shown in ROWS:
        assert re.fullmatch(r"\[[^]]+\]\([\w.#/-]+\)", where), where
        names = re.findall(r"`([^`]+)`", shown)
        assert names, shown
        for name in names:
            if name.startswith("lakemq "):
                check_command(root, shlex.split(name)[1:])
            else:
                assert name in metrics, name


def check_command(command: Any, words: list[str]) -> None:
    told = " ".join(words)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands") or command.invoke_without_command, told
    known = {option for each in command.params for option in each.opts + each.secondary_opts}
    takes_words = any(not each.opts[0].startswith("-") for each in command.params)
    for word in words:
        assert word in known if word.startswith("-") else takes_words, told
