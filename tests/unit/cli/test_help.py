"""Goal: help can be read on 80 columns, and what needs no plugin and no node loads none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from click.testing import CliRunner

from lakemq.cli.main import _add_plugin_commands, app


def commands(at: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, at
    for name, each in getattr(at, "commands", {}).items():
        yield from commands(each, (*words, name))


def test_help_names_options_whole_on_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _add_plugin_commands()
    wrong = {}
    whole = typer.main.get_command(app)
    for words, each in commands(whole):
        shown = CliRunner().invoke(whole, [*words, "--help"]).stdout
        names = [
            name
            for param in each.params
            for name in (*param.opts, *param.secondary_opts)
            if name.startswith("--") and not getattr(param, "hidden", False)
        ]
        cut = [name for name in names if name not in shown]
        if cut or max(map(len, shown.splitlines())) > 80:
            wrong[" ".join(words)] = cut
    assert wrong == {}


@pytest.mark.parametrize("words", [("version",), ("--version",)])
def test_the_version_is_told_without_a_node(words: tuple[str, ...]) -> None:
    code = (
        "import atexit, sys;"
        "from lakemq.cli.main import main;"
        "heavy = {'lakemq.node', 'lakemq.plugins.native.cli'};"
        "atexit.register(lambda: print(*heavy & {*sys.modules}));"
        "main()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    version, loaded = run.stdout.split("\n")[:2]
    assert version.startswith("lakemq 0.") and loaded == ""
