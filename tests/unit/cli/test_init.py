"""Goal: what `lakemq init` writes says what the code does: every setting, every default."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lakemq.broker_core.api.settings import is_reloadable
from lakemq.broker_core.configuration.config import SECTIONS, load_config
from lakemq.broker_core.plugin_host import PluginHost
from lakemq.cli.config_findings import check
from lakemq.cli.configuration.commented_file import commented_file, toml_value
from lakemq.cli.configuration.init import init
from lakemq.plugins.admin.api.descriptions import texts_of

ROOT = Path(__file__).parents[3]

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


def test_each_setting_says_what_it_does_and_whether_it_is_reloadable() -> None:
    host = PluginHost(load_config(None, {}).source)
    host.load(disabled_too=True)
    plugins = {f"plugins.{name}": model for name, model in host.settings_models().items()}
    text = commented_file()
    for name, model in [*SECTIONS.items(), *plugins.items()]:
        section = re.split(rf"\n#?\[{re.escape(name)}\]\n", text)[1].split("\n\n\n")[0]
        said = {each.split()[0].lstrip("#"): above for above, each in settings_of(section)}
        for field, info in model.model_fields.items():
            does = " ".join(texts_of(model).get(field, "").split())
            assert said[field].startswith(f"{does} ("), f"{name}.{field}"
            assert (" reloadable)" in said[field]) == is_reloadable(info), f"{name}.{field}"


def settings_of(section: str) -> Iterator[tuple[str, str]]:
    """(comment above, setting), the comment in one line."""
    for part in section.split("\n\n"):
        comment = [line.removeprefix("# ") for line in part.splitlines() if line[:2] == "# "]
        settings = [line for line in part.splitlines() if re.match(r"#\w", line)]
        if settings:
            yield " ".join(comment), settings[0]
        elif comment:  # without a default: `# name has no default.` stands last
            yield " ".join(comment[:-1]), comment[-1]


def test_the_file_of_the_documentation_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "lakemq.toml"
    file.write_text(re.sub(r"(?m)^#(?=[\w\[])", "", (ROOT / "docs/lakemq.toml").read_text()))
    assert settings(file) == settings(None)


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
