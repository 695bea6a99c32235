"""Goal: help can be read on 80 columns, and what needs no plugin and no node loads none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from click.testing import CliRunner

from lakemq.cli.commands import add_plugin_commands, app


def commands(at: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, at
    for name, each in getattr(at, "commands", {}).items():
        yield from commands(each, (*words, name))


def test_help_names_options_whole_on_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    add_plugin_commands()
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


def run_main(*words: str, heavy: set[str]) -> list[str]:
    """Lines that `lakemq` prints, and last which of `heavy` it imported."""
    code = (
        "import atexit, sys;"
        "from lakemq.cli.main import main;"
        f"atexit.register(lambda: print(*sorted({heavy!r} & {{*sys.modules}})));"
        "main()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    return run.stdout.split("\n")[:-1]


def test_the_version_is_told_without_a_node() -> None:
    version, loaded = run_main("version", heavy={"lakemq.node", "lakemq.plugins.native.cli"})
    assert version.startswith("lakemq 0.") and loaded == ""
    heavy = {"asyncio", "numpy", "pydantic", "typer", "lakemq.broker_core"}
    assert run_main("--version", heavy=heavy) == [version, ""]


def test_start_imports_no_other_command() -> None:
    heavy = {"aiohttp", "lakemq.cli.commands", "lakemq.plugins.native.sdk", "lakemq.spark_plugin"}
    *_, loaded = run_main("start", "--help", heavy=heavy)
    assert loaded == ""


def test_a_broker_imports_neither_the_sdk_nor_an_http_client() -> None:
    code = (
        "import lakemq.node, lakemq.plugins.native.listener, lakemq.plugins.mqtt.server.engine;"
        "import lakemq.plugins.journal.storage, lakemq.broker_core.security.assembly, sys;"
        "heavy = {'aiohttp', 'lakemq.plugins.native.sdk', 'obstore'};"
        "print(*sorted(heavy & {*sys.modules}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "\n"
