"""Goal: the clients in Go and TypeScript that docs/clients.md shows are built as it says, and
produce, fetch and share a group with a broker and with Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import lakemq
from lakemq.broker_core.api.records.partitioner import partition_of
from tests.support.node.node import NodeProcess, unique
from tests.test_docs import blocks

ROOT = Path(__file__).parents[3]
LANGUAGES = ("go", "typescript")
"""In the order of their sections on the page."""
NEEDED = {"go": ("go",), "typescript": ("npm", "node")}
REACHED = {"go": ("go", "mod", "download"), "typescript": ("npm", "ping")}
"""Fails where the language's registry cannot be reached."""
RUN = {"go": ["./client"], "typescript": ["node", "build/main.js"]}

Client = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = pytest.mark.timeout(600)  # of a machine that has never compiled gRPC


@pytest.fixture(scope="module", params=LANGUAGES)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Client:
    """Runs the client that the page's own commands have built in a copy of the example."""
    language: str = request.param
    for tool in NEEDED[language]:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    folder = tmp_path_factory.mktemp(language) / "client"
    ignored = shutil.ignore_patterns("node_modules", "build", "lakemq")
    shutil.copytree(ROOT / "examples/clients" / language, folder, ignore=ignored)
    environment = _with_commands(folder.parent / "commands")

    def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, timeout=500,
            check=False, **options,  # type: ignore[call-overload]
        )  # fmt: skip

    script = blocks(ROOT / "docs/clients.md", "bash")[LANGUAGES.index(language)]
    done = run("bash", "-euc", script)
    if done.returncode and run(*REACHED[language]).returncode:
        pytest.skip(f"the packages cannot be fetched: {done.stderr.strip()[-300:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return lambda *words, **options: run(*RUN[language], *words, **options)


def _with_commands(folder: Path) -> dict[str, str]:
    """An environment with `lakemq` of this checkout and gRPC's `protoc`."""
    folder.mkdir()
    for name, module in (("lakemq", "lakemq"), ("protoc", "grpc_tools.protoc")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        (folder / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GOTOOLCHAIN": "local",  # a newer one is not fetched
    }


@pytest.fixture
def rooms(client: lakemq.SyncClient) -> str:
    name = unique("other-languages")
    client.create_topic(name, partitions=3)
    return name


def test_what_it_produces_is_what_python_reads(
    built: Client, node: NodeProcess, client: lakemq.SyncClient, rooms: str
) -> None:
    lines = [f"room-{n % 17} {n} degrees" for n in range(500)]
    for part in (lines[:250], lines[250:]):
        said = built(node.native, "produce", rooms, input="\n".join(part) + "\n")
        assert said.returncode == 0, said.stderr
    read = list(client.consume_from(rooms, {n: "earliest" for n in range(3)}))
    assert len(read) == 500
    for room in {line.split()[0] for line in lines}:
        of_room = [each for each in read if each.key == room.encode()]
        assert {each.partition for each in of_room} == {partition_of(room.encode(), 3)}
        assert [b"%b %b" % (each.key, each.value) for each in of_room] == [
            line.encode() for line in lines if line.split()[0] == room
        ]


def test_what_python_produces_is_what_it_fetches(
    built: Client, node: NodeProcess, client: lakemq.SyncClient, rooms: str
) -> None:
    """Compressed and not, with headers, nulls, and times that are years apart."""
    for codec in ("none", "lz4", "zstd"):
        with client.producer(compression=codec, linger_ms=50) as producer:
            for number in range(40):
                record = lakemq.NewRecord(
                    f"{codec}-{number}-".encode() * 20 if number else None,
                    key=b"%d" % (number % 7) if number % 9 else None,
                    headers=(("unit", b"celsius"), ("none", None)) if number % 2 else (),
                    timestamp_ms=number * 10**9,
                )
                producer.enqueue(rooms, record)
    said = built(node.native, "fetch", rooms)
    assert said.returncode == 0, said.stderr
    stored = client.consume_from(rooms, {n: "earliest" for n in range(3)})
    expected = [
        " ".join((str(each.partition), str(each.offset), *map(_text, (each.key, each.value))))
        for each in stored
    ]
    assert len(expected) == 120
    assert sorted(said.stdout.splitlines()) == sorted(expected)


def _text(cell: bytes | None) -> str:
    return (cell or b"").decode()


def test_members_share_a_group_and_commit(
    built: Client, node: NodeProcess, client: lakemq.SyncClient, rooms: str
) -> None:
    """Two of its members, and one of Python's behind them, each record once."""
    client.send_batch(rooms, [lakemq.NewRecord(b"%d" % n, key=b"%d" % n) for n in range(400)])
    said: list[subprocess.CompletedProcess[str]] = []

    def member() -> None:
        said.append(built(node.native, "consume", rooms, rooms, "200"))

    other = threading.Thread(target=member)
    other.start()
    member()
    other.join()
    assert [each.returncode for each in said] == [0, 0], said
    values = [line.split()[3] for each in said for line in each.stdout.splitlines()]
    assert sorted(values, key=int) == [str(n) for n in range(400)]
    group = client.describe_group(rooms)
    assert {each.committed_offset for each in group.offsets} == {
        each.high_watermark for each in group.offsets
    }
    assert not group.members, "they have said that they leave"
    client.send(rooms, b"last", key=b"x")
    with client.subscribe(rooms, group=rooms) as consumer:
        record = consumer.poll(timeout_s=30)
        assert record is not None and record.value == b"last"


def test_a_refusal_is_one_sentence(built: Client, node: NodeProcess) -> None:
    said = built(node.native, "fetch", "nowhere")
    assert said.returncode == 1
    assert said.stderr == "UNKNOWN_TOPIC: topic 'nowhere' does not exist\n"
