"""Goal: what the documentation shows is true: its Python runs, its TOML is valid, its commands
exist, its links lead somewhere.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.support.node.node import NodeProcess

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
RUNNABLE = (
    "README.md",
    "docs/index.md",
    "docs/mqtt.md",
    "docs/schema-registry.md",
    "docs/sdk.md",
    "docs/delivery.md",
    "docs/from-kafka.md",
    "docs/plugins.md",
    "docs/plugin-testing.md",
)
"""Pages whose Python runs here, top to bottom, against a fresh broker."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OURS = re.compile(
    r"^https://(github\.com/lakemq/lakemq/(blob|tree)|raw\.githubusercontent\.com/lakemq/lakemq)/main/"
)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(page.read_text()) if kind == language]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("docs")) as node:
        yield node


@pytest.mark.parametrize("name", RUNNABLE)
def test_python_runs(name: str, node: NodeProcess, tmp_path: Path) -> None:
    script = "\n".join(blocks(ROOT / name, "python"))
    assert script
    for shown, real in (
        ("127.0.0.1:9700", node.native),
        ("127.0.0.1:1883", node.addresses["mqtt"]),
        ("127.0.0.1:9703", node.addresses["admin"]),
        ("rooms", f"rooms-{tmp_path.name}"),
    ):
        script = script.replace(shown, real)
    file = tmp_path / "page.py"
    file.write_text(script)
    run = subprocess.run(
        [sys.executable, "-W", "error", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr


def test_the_admin_api_answers_curl(node: NodeProcess, tmp_path: Path) -> None:
    (script,) = blocks(ROOT / "docs/admin-api.md", "bash")
    script = script.replace("127.0.0.1:9703", node.addresses["admin"])
    run = subprocess.run(
        ["bash", "-euxc", script], capture_output=True, text=True, timeout=60, check=False,
        cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert '"value":"21.5"' in run.stdout and '"action":"DELETE topics/{topic}"' in run.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_toml_parses_and_links_lead_somewhere(page: Path) -> None:
    for text in blocks(page, "toml"):
        tomllib.loads(text)
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        path = OURS.sub("", target)
        if "://" not in path:
            folder = page.parent if path == target else ROOT
            assert (folder / path).exists(), f"{page.name} links to {target}"


def test_the_readme_links_from_anywhere() -> None:
    """It is the project's page on a package index too, where relative links lead nowhere."""
    targets = LINK.findall(FENCE.sub("", (ROOT / "README.md").read_text()))
    assert targets and all(target.startswith("https://") for target in targets)


@cache
def all_commands() -> Any:
    """Built once: it takes some tenths of a second."""
    from lakemq.cli import commands as cli

    cli.add_plugin_commands()
    return get_command(cli.app)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    lines = [line for text in blocks(page, "console") for line in text.splitlines()]
    for line in lines:
        if not line.startswith("$ lakemq "):
            continue
        words = shlex.split(line.removeprefix("$ lakemq "), comments=True)
        command = all_commands()
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        known = {option for each in command.params for option in each.opts + each.secondary_opts}
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used - {"--help"} <= known, f"{page.name}: {line}"
        incomplete = hasattr(command, "commands") and not command.invoke_without_command
        assert not incomplete, f"{page.name}: {line}: no such command"


@pytest.mark.parametrize(
    "name",
    [
        "README.md", "CONTRIBUTING.md", ".github/workflows/ci.yml", ".github/workflows/release.yml",
        ".pre-commit-config.yaml",
    ],
)  # fmt: skip
def test_make_targets_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = (ROOT / name).read_text()
    lines = re.findall(r"(?:`|\$ |run: |entry: )make((?: (?:--)?[a-z-]+)+)", text)
    named = {word for line in lines for word in line.split() if not word.startswith("--")}
    assert named and named <= targets, named - targets


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """Strictly: every page is in the navigation, every link and anchor is there."""
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-d", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(list((ROOT / "docs").rglob("*.md")))
    loaded = re.compile(
        r'<(?:script|img|iframe)[^>]*src="(?:https?:)?//|<link[^>]*rel="(?:stylesheet|preconnect|icon)"[^>]*href="(?:https?:)?//'
    )
    for page in pages:
        assert not loaded.search(page.read_text()), page.name
