"""A third-party plugin, from pip to a stored record: installed into an environment of its own,
found by its entry point, switched on by its section, spoken to over its socket.
"""

from __future__ import annotations

import site
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakemq
from examples.air_quality.node import Node
from tests.support.node.node import PORTS_FREE

ROOT = Path(__file__).parents[3]
PLUGIN = ROOT / "examples/plugins/lakemq-line"
SECTION = """
[plugins.line]
port = 0
topics = ["meters", "missing"]
line_max_bytes = 200
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of a fresh environment that holds the plugin. What else it needs, LakeMQ and
    its dependencies, it sees where they are installed already: the test needs no network."""
    folder = tmp_path_factory.mktemp("plugin") / "venv"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    paths = [str(ROOT), *site.getsitepackages()]
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in paths)
    (packages / "installed-already.pth").write_text(lines)
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps",
         "--no-index", "--no-build-isolation", "--disable-pip-version-check", str(PLUGIN)],
        check=True, timeout=60,
    )  # fmt: skip
    return str(python)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("config") / "lakemq.toml"
    file.write_text(PORTS_FREE + SECTION)
    return file


@pytest.fixture(scope="module")
def node(python: str, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    node = Node(config, folder / "data", folder / "node.log", command=(python, "-m", "lakemq"))
    node.start()
    with lakemq.connect(node.addresses["native"]) as client:
        for topic in ("meters", "other"):
            client.create_topic(topic, partitions=2)
    yield node
    node.stop()


def run(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "lakemq", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "250"},
    )


def ask(node: Node, requests: bytes, answers: int) -> list[bytes]:
    host, _, port = node.addresses["line"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(requests)
        with client.makefile("rb") as lines:
            return [lines.readline() for _ in range(answers)]


def plugin_row(table: str) -> list[str]:
    (row,) = (line for line in table.splitlines() if line.startswith("line "))
    return row.split()


def test_plugin_list_shows_it_off_until_it_has_a_section(python: str, config: Path) -> None:
    without = plugin_row(run(python, "plugin", "list").stdout)
    assert without[:4] == ["line", "0.1.0", "lakemq-line", "off"]

    listed = run(python, "plugin", "list", "--config", str(config))
    assert listed.returncode == 0
    assert plugin_row(listed.stdout) == [
        "line", "0.1.0", "lakemq-line", "on", "authenticator", "authorizer", "interceptors",
        "listeners", "settings",
    ]  # fmt: skip


def test_a_wrong_setting_of_the_plugin_is_named_with_its_line(
    python: str, config: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[plugins.line]\nprot = 9710\n")
    checked = run(python, "config", "check", "--config", str(wrong))

    assert checked.returncode == 2
    assert f"{wrong}:2: plugins.line.prot: unknown setting; did you mean 'port'?" in checked.stderr


def test_without_the_plugin_its_section_is_an_error(config: Path) -> None:
    checked = run(sys.executable, "config", "check", "--config", str(config))

    assert checked.returncode == 2
    assert "no plugin of that name is installed" in checked.stderr


def test_lines_become_records(node: Node) -> None:
    answers = ask(
        node,
        b"PUT meters kitchen 21.5\nPUT meters kitchen 21.6\nPUT meters - no key\n"
        b"PUT meters cellar \xff\x00\n",
        4,
    )
    assert all(answer.startswith(b"OK ") for answer in answers)
    places = [tuple(map(int, answer.split()[1:])) for answer in answers]

    with lakemq.connect(node.addresses["native"]) as client:
        stored = {
            (partition, record.offset): record
            for partition in (0, 1)
            for record in client.consume("meters", partition=partition)
        }
    found = [stored[place] for place in places]
    assert [(record.key, record.value) for record in found] == [
        (b"kitchen", b"21.5"),
        (b"kitchen", b"21.6"),
        (None, b"no key"),
        (b"cellar", b"\xff\x00"),
    ]
    assert places[1] == (places[0][0], places[0][1] + 1)
    for record in found:
        ((name, client_name),) = record.headers
        assert name == "line-client"
        assert (client_name or b"").startswith(b"127.0.0.1:")


def test_what_cannot_be_stored_is_told_line_by_line(node: Node) -> None:
    answers = ask(
        node, b"PUT other k v\nPUT missing k v\nGET meters\nPUT meters k v\n" + b"x" * 300, 5
    )
    codes = [answer.split()[:2] for answer in answers]

    assert codes[:3] == [
        [b"ERR", b"NOT_AUTHORIZED"],
        [b"ERR", b"UNKNOWN_TOPIC"],
        [b"ERR", b"INVALID_REQUEST"],
    ]
    assert codes[3][0] == b"OK"
    assert codes[4] == [b"ERR", b"LINE_TOO_LONG"]


def test_many_requests_in_one_go_are_answered_in_order(node: Node) -> None:
    requests = b"".join(b"PUT meters many %d\n" % number for number in range(5_000))
    answers = ask(node, requests, 5_000)
    places = [tuple(map(int, answer.split()[1:])) for answer in answers]

    assert len({partition for partition, _ in places}) == 1
    first = places[0][1]
    assert [offset for _, offset in places] == list(range(first, first + 5_000))
