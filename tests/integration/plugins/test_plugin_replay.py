"""Goal: a plugin's new version shows what it would have made of records that a node has stored, and
nothing of it touches them; whatever a version does, the command ends as `diff` does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.cli.plugins.commands import plugin
from tests.support.node.installed_plugin import InstalledPlugin
from tests.support.node.node import NodeProcess, unique

ROOT = Path(__file__).parents[3]
PASSES = "        return columns\n"
RULES = """        if topic.startswith("other"):
            return columns
        print("not between the frames")
        if any(value == b"raise" for value in columns.values):
            raise ValueError("never seen")
        if any(value == b"refuse" for value in columns.values):
            raise InvalidRequest(f"{principal.name} may not")
        return columns._replace(values=[
            value.upper() if value == b"change" else value for value in columns.values
        ])
"""
VALUES = [b"a", b"change", b"refuse", b"raise", b"long enough to be refused", b"a"]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> InstalledPlugin:
    return InstalledPlugin(tmp_path_factory.mktemp("old") / "made")


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> InstalledPlugin:
    """As in its project: a newer version."""
    made = InstalledPlugin(tmp_path_factory.mktemp("new") / "made")
    made.version("0.2.0")
    made.replace("interceptor", PASSES, RULES)
    return made


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of both versions."""
    file = tmp_path_factory.mktemp("config") / "lakemq.toml"
    file.write_text("[plugins.sized]\nvalue_max_bytes = 10\n")
    return file


@pytest.fixture(scope="module")
def topic(node: NodeProcess) -> str:
    """Records of two partitions."""
    name = unique("replayed")
    with lakemq.connect(node.native, timeout_s=20) as client:
        client.create_topic(name, partitions=2)
        with client.producer() as producer:
            for number in range(2):
                for value in VALUES:
                    producer.send(name, value, key=b"k", partition=number)
            producer.flush()
    return name


@pytest.fixture
def installed(old: InstalledPlugin, monkeypatch: pytest.MonkeyPatch) -> InstalledPlugin:
    """The old version, for this process and for those that it starts."""
    monkeypatch.syspath_prepend(old.folder)
    monkeypatch.setenv("PYTHONPATH", f"{old.folder}{os.pathsep}{ROOT}")
    return old


def replay(node: NodeProcess, topic: str, *more: str, code: int) -> str:
    told = CliRunner().invoke(
        plugin, ["replay", "sized", "--topic", topic, "--bootstrap", node.native, *more]
    )
    assert told.exit_code == code, told.output
    return told.output


def test_two_versions_side_by_side(
    node: NodeProcess, topic: str, installed: InstalledPlugin, new: InstalledPlugin, config: Path
) -> None:
    asked = ("--path", str(new.folder), "--config", str(config), "--as", "ann")
    found: dict[str, Any] = json.loads(replay(node, topic, *asked, "--json", code=1))
    assert (found["before"], found["after"], found["records"]) == ("0.1.0", "0.2.0", 12)
    # Both refuse the long value, in the same words.
    kinds = ("same", "changed", "refused", "accepted", "raised")
    assert [found[kind] for kind in kinds] == [6, 2, 2, 0, 2]
    changed, refused, raised = found["differences"][:3]
    assert changed == {
        "partition": 0, "offset": 1, "kind": "changed",
        "before": {"value": "change"}, "after": {"value": "CHANGE"},
    }  # fmt: skip
    assert (refused["kind"], refused["offset"], refused["before"]["value"], refused["after"]) == (
        "refused", 2, "refuse", {"refused": "INVALID_REQUEST: ann may not"},
    )  # fmt: skip
    assert (raised["kind"], raised["before"]["key"], raised["after"]) == (
        "raised", "k", {"raised": "plugin sized: its interceptor failed: ValueError: never seen"},
    )  # fmt: skip

    one = ("--show", "1", "--partition", "1", "--offsets", "1:3")
    assert replay(node, topic, *asked, *one, code=1).splitlines()[:5] == [
        "1@1 changed", "  - value: change", "  + value: CHANGE", "... 1 more differences",
        "0.1.0 -> 0.2.0: 2 records: 0 same, 1 changed, 1 refused, 0 accepted, 0 raised",
    ]  # fmt: skip
    with lakemq.connect(node.native, timeout_s=20) as client:
        assert sorted(each.value or b"" for each in client.consume(topic)) == sorted(VALUES * 2)


def test_a_version_that_is_not_installed_yet_against_what_is_recorded(
    node: NodeProcess, topic: str, new: InstalledPlugin
) -> None:
    asked = ("--json", "--max", "2", "--partition", "0", "--path", str(new.folder))
    found = json.loads(replay(node, topic, *asked, code=1))
    assert (found["before"], found["after"], found["same"]) == ("as recorded", "0.2.0", 1)


def test_the_installed_version_against_what_is_recorded(
    node: NodeProcess, topic: str, installed: InstalledPlugin, config: Path
) -> None:
    out = replay(node, topic, "--json", "-p", "0", code=0)
    assert (json.loads(out)["after"], json.loads(out)["same"]) == ("0.1.0", 6)
    out = replay(node, topic, "--json", "-p", "0", "--config", str(config), code=1)
    assert json.loads(out)["refused"] == 1
    assert "a value of 25 bytes" in out


def test_trouble_is_one_sentence(
    node: NodeProcess, topic: str, tmp_path: Path, new: InstalledPlugin
) -> None:
    def told(*more: str, at: str = topic) -> str:
        said = replay(node, at, *more, code=2)
        assert said.count("\n") == 1, said
        return said

    assert "is the broker's own" in told(at="__mqtt_sessions")
    assert "it takes FIRST:END" in told("--offsets", "7")
    assert "both say where to begin" in told("--offsets", "7:", "--from-time", "1h")
    assert "has no partition 9" in told("--partition", "9")
    assert "lakemq: " in told(at=unique("none"))
    made = InstalledPlugin(tmp_path / "made")
    made.replace("interceptor", PASSES, "        import os\n        os._exit(7)\n")
    assert "records 0@0 to 0@4: its process ended with exit code 7" in told(
        "--path", str(made.folder), "--max", "5"
    )
    made.write("settings", "1 / 0\n")
    assert "ZeroDivisionError" in told("--path", str(made.folder))


def test_one_version_is_not_compared_with_itself(
    node: NodeProcess, topic: str, installed: InstalledPlugin
) -> None:
    said = replay(node, topic, "--path", str(installed.folder), code=2)
    assert "there is nothing to compare" in said
