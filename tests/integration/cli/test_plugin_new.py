"""Goal: what `lakemq plugin new` writes is a plugin: it installs, a node finds it, its own tests
pass, and they fail when it is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakemq.cli.plugins.commands import plugin

ROOT = Path(__file__).parents[3]


def run(*command: str, folder: Path, path: str = "", code: int = 0) -> str:
    search = os.pathsep.join(filter(None, (path, str(ROOT))))
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, cwd=folder, timeout=200,
        env={**os.environ, "PYTHONPATH": search}, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_new_plugin_works(tmp_path: Path) -> None:
    said = run("lakemq", "plugin", "new", "my-limit", folder=tmp_path)
    assert said.startswith("lakemq-my-limit: 8 files")
    made = tmp_path / "lakemq-my-limit"
    assert not [each for each in made.rglob("*") if "sample" in each.name.lower()]
    assert not [each for each in made.rglob("*.*") if "sample" in each.read_text().lower()]

    site = str(tmp_path / "site")
    install = ("pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", site)
    run(*install, str(made), folder=tmp_path)
    config = tmp_path / "lakemq.toml"
    config.write_text("[plugins.my-limit]\nvalue_max_bytes = 10\n")
    listed = run("lakemq", "plugin", "list", "--config", str(config), folder=tmp_path, path=site)
    (line,) = [each for each in listed.splitlines() if each.startswith("my-limit")]
    assert "lakemq-my-limit" in line and " on " in line and "interceptors" in line
    config.write_text("[plugins.my-limit]\nvalue_max_bytes = 0\n")
    told = run(
        "lakemq", "config", "check", "--config", str(config), folder=tmp_path, path=site, code=2
    )
    assert "value_max_bytes" in told

    tests = ("pytest", "-q", "-p", "no:cacheprovider")
    assert " passed" in run(*tests, folder=made, path=site)
    broken = made / "lakemq_my_limit" / "interceptor.py"
    broken.write_text(broken.read_text().replace("longest > self", "longest < self"))
    assert "failed" in run(*tests, folder=made, path=str(made), code=1)


@pytest.mark.parametrize("name", ["9x", "With-Capitals", "a--b", "class", ""])
def test_what_is_no_name(name: str) -> None:
    told = CliRunner().invoke(plugin, ["new", name])
    assert told.exit_code == 2 and "lower-case letters" in told.output


def test_nothing_is_written_over(tmp_path: Path) -> None:
    told = CliRunner().invoke(plugin, ["new", "a", "--folder", str(tmp_path)])
    assert told.exit_code == 1 and told.output == f"lakemq: {tmp_path}: File exists\n"
    assert not list(tmp_path.iterdir())
