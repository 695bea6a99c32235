"""Goal: `lakemq doctor` finds what would keep a node from working, and says what to do."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lakemq.cli.config_findings import Listening
from lakemq.cli.doctor import (
    Check,
    State,
    doctor,
    of_certificate,
    of_clock,
    of_disk,
    of_fsync,
    of_limit,
    of_port,
    of_space,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
app = typer.Typer()
app.command()(doctor)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (of_limit(-1), State.OK),
        (of_limit(1_048_576), State.OK),
        (of_limit(1024), State.WARNING),
        (of_clock(None), State.OK),
        (of_clock(0x2001), State.OK),
        (of_clock(0x2041), State.WARNING),
        (of_space(Path("/d"), 10, 100), State.OK),
        (of_space(Path("/d"), 9, 100), State.WARNING),
        (of_fsync([0.001, 0.001, 5.0]), State.OK),
        (of_fsync([0.001, 0.03, 0.04]), State.WARNING),
        (of_certificate("meta.tls_cert", NOW + timedelta(days=31), NOW), State.OK),
        (of_certificate("meta.tls_cert", NOW + timedelta(days=29), NOW), State.WARNING),
        (of_certificate("meta.tls_cert", NOW, NOW), State.FAILING),
    ],
)
def test_what_is_well_and_what_is_not(found: Check, state: State) -> None:
    assert found.state is state, found
    assert bool(found.advice) is (state is not State.OK)


def test_a_port_that_something_has_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = Listening(("plugins", "mqtt", "port"), "127.0.0.1", taken.getsockname()[1])
        found = of_port(wanted)
    assert found.state is State.WARNING and "plugins.mqtt.port is in use" in found.found
    assert of_port(wanted).state is State.OK
    assert of_port(wanted._replace(host="192.0.2.1")).state is State.FAILING


def test_the_disk_is_that_of_the_folder_that_will_be_made(tmp_path: Path) -> None:
    space, fsync = of_disk(tmp_path / "not" / "there" / "yet")
    assert "are free at" in space.found and "fsync takes" in fsync.found
    assert list(tmp_path.iterdir()) == []


def test_the_command_fails_for_what_keeps_a_node_from_working(tmp_path: Path) -> None:
    file = tmp_path / "lakemq.toml"
    file.write_text(f'[node]\ndata_dir = "{tmp_path}/data"\n')
    well = CliRunner().invoke(app, ["-c", str(file), "--output", "json"])
    states = {each["name"]: each["state"] for each in json.loads(well.stdout)}
    assert well.exit_code == 0, well.output
    assert {*states} >= {"limits", "clock", "config", "disk", "fsync", "ports"}
    file.write_text("[plugins.mqtt]\nprot = 1\n")
    wrong = CliRunner().invoke(app, ["-c", str(file)])
    assert wrong.exit_code == 1
    assert "did you mean 'port'?" in wrong.stdout and "failing" in wrong.stdout
