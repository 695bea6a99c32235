"""Goal: the operator's guide can be typed as it stands: every command of it runs on a cluster."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from lakemq.cli.commands import add_plugin_commands, app
from lakemq.testing import Cluster

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs/operating.md"
BLOCK: Final = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MAY_WARN: Final = "doctor"
"""Of this machine, not of the guide."""
pytestmark = [pytest.mark.timeout(300)]


def commands() -> list[str]:
    lines = "".join(BLOCK.findall(PAGE.read_text())).splitlines()
    assert all(line.startswith("$ lakemq ") for line in lines)
    return [line.removeprefix("$ ") for line in lines]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = "[topics]\nreplication = 3\nmin_in_sync = 2\n"
    with Cluster(tmp_path_factory.mktemp("guide"), 4, config=config, links=False) as cluster:
        yield cluster


def test_every_command_runs_in_order(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKEMQ_BOOTSTRAP", cluster.bootstrap[0])
    monkeypatch.setenv("LAKEMQ_META_ADDRESS", " ".join(cluster.meta))
    monkeypatch.setenv("LAKEMQ_ADMIN", cluster.address("n1", "admin"))
    Path("sensor-1.password").write_text("a password\n")
    add_plugin_commands()
    asked = commands()
    assert len(asked) > 30
    for command in asked:
        words, _, file = command.partition(" < ")
        given = Path(file).read_text() if file else ""
        run = CliRunner().invoke(app, shlex.split(words)[1:], input=given)
        allowed = (0, 1) if MAY_WARN in command else (0,)
        assert run.exit_code in allowed, f"{command}: {run.output}"
