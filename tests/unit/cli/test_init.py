"""Goal: what `lakemq init` writes says what the code does: every setting, every default."""

from __future__ import annotations

import re
import stat
from enum import StrEnum
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lakemq.broker_core.configuration.config import SECTIONS, load_config
from lakemq.broker_core.plugin_host import PluginHost
from lakemq.cli.config_findings import check
from lakemq.cli.configuration.commented_file import commented_file, toml_value
from lakemq.cli.configuration.init import init

app = typer.Typer()
app.command()(init)


def settings(file: Path | None) -> dict[str, object]:
    """Section -> its settings, of plugins too."""
    config = load_config(file, {})
    host = PluginHost(config.source)
    host.load(disabled_too=True)
    found = {name: config.source.section((name,), model) for name, model in SECTIONS.items()}
    on_or_off = {"enabled"}  # a section alone switches on
    plugins = {each.name: each.settings.model_dump(exclude=on_or_off) for each in host.plugins}
    return found | plugins


def test_it_is_accepted_and_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "lakemq.toml"
    run = CliRunner().invoke(app, [str(file)])
    assert run.exit_code == 0 and str(file) in run.stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = check(file, {})
    assert (found.errors, found.plugins) == ([], check(None, {}).plugins)
    assert settings(file) == settings(None)
    assert max(map(len, file.read_text().splitlines())) <= 200


def test_its_settings_are_the_defaults_and_all_there_are(tmp_path: Path) -> None:
    file = tmp_path / "all.toml"
    text = re.sub(r"(?m)^#(?=[\w\[])", "", commented_file())
    file.write_text(text)
    assert settings(file) == settings(None)
    host = PluginHost(load_config(None, {}).source)
    host.load(disabled_too=True)
    plugins = {f"plugins.{name}": model for name, model in host.settings_models().items()}
    for name, model in [*SECTIONS.items(), *plugins.items()]:
        section = text.split(f"\n[{name}]\n")[1].split("\n[")[0]
        for field in model.model_fields:
            said = f"^{field} = |^# {field} (has no default|is not set)\\."
            assert re.search(said, section, re.MULTILINE), f"{name}.{field}"


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "lakemq.toml"
    file.write_text("mine")
    run = CliRunner().invoke(app, [str(file)])
    assert (run.exit_code, file.read_text()) == (1, "mine")
    run = CliRunner().invoke(app, [str(tmp_path / "none" / "lakemq.toml")])
    assert run.exit_code == 2 and "No such file" in run.stderr


class Word(StrEnum):
    ONE = "one"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Word.ONE, '"one"'),
        (True, "true"),
        (1.5, "1.5"),
        ('a"b\\é', '"a\\"b\\\\é"'),
        (Path("/x"), '"/x"'),
        ({}, "{}"),
        ({"a b": [1, "x"]}, '{ "a b" = [1, "x"] }'),
    ],
)
def test_values(value: object, written: str) -> None:
    assert toml_value(value) == written
