"""Goal: a blocking call ends when it should (time-out, KeyboardInterrupt, a client that is closed),
can be made anywhere but where it would wait for itself, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

import lakemq
from tests.support.node.node import NodeProcess

_names = (f"blocking-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("blocking")) as node:
        yield node


@pytest.fixture
def client(node: NodeProcess) -> Iterator[lakemq.SyncClient]:
    with lakemq.connect(node.native, timeout_s=20) as client:
        yield client


@pytest.fixture
def topic(client: lakemq.SyncClient) -> str:
    name = next(_names)
    client.create_topic(name, partitions=1)
    return name


@contextmanager
def paused(node: NodeProcess) -> Iterator[None]:
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """As if the user had pressed Ctrl-C then."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def loop_threads() -> int:
    return sum(each.name == "lakemq-sdk" for each in threading.enumerate())


def test_a_send_without_an_answer_ends_in_time(node: NodeProcess, topic: str) -> None:
    with lakemq.connect(node.native, timeout_s=1) as client:
        assert client.send(topic, b"before").offset == 0
        began = time.monotonic()
        with paused(node), pytest.raises(lakemq.OutcomeUnknown, match="no answer in 1 s"):
            client.send(topic, b"perhaps")
        assert time.monotonic() - began < 5
        for _ in range(50):  # the broker may be busy with what it missed
            try:
                client.send(topic, b"behind")
                break
            except lakemq.OutcomeUnknown:
                time.sleep(0.1)
        values = [each.value for each in client.consume(topic)]
        assert values[0] == b"before" and values[-1] == b"behind"
        assert values.count(b"perhaps") <= 1


def test_an_interrupted_call_leaves_the_client_as_it_was(
    node: NodeProcess, client: lakemq.SyncClient, topic: str
) -> None:
    client.send(topic, b"0")
    with paused(node), interrupted_after(0.3), pytest.raises(KeyboardInterrupt):
        client.send(topic, b"1")
    assert client.send(topic, b"2").offset >= 1
    assert [each.value for each in client.consume(topic)] in (
        [b"0", b"1", b"2"],
        [b"0", b"2"],
    )
    with client.subscribe(topic, group=topic) as consumer:
        records = iter(consumer)
        assert next(records).value == b"0"
        rest = [each.value for each in client.consume(topic)][1:]
        assert [next(records).value for _ in rest] == rest
        with interrupted_after(0.3), pytest.raises(KeyboardInterrupt):
            next(records)
        client.send(topic, b"3")
        assert next(iter(consumer)).value == b"3"


def test_threads_share_a_client(client: lakemq.SyncClient, topic: str) -> None:
    placed: list[int] = []

    def send(name: int) -> None:
        for number in range(50):
            placed.append(client.send(topic, b"%d:%d" % (name, number)).offset)

    threads = [threading.Thread(target=send, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(placed) == list(range(400))
    values = [each.value or b"" for each in client.consume(topic)]
    for name in range(8):  # in the order in which each thread sent them
        own = [each for each in values if each.startswith(b"%d:" % name)]
        assert own == [b"%d:%d" % (name, number) for number in range(50)]


def test_acks_and_compression_are_chosen_for_each_call(
    client: lakemq.SyncClient, topic: str
) -> None:
    rows = [lakemq.NewRecord(b"x" * 100)] * 100
    for compression in ("none", "lz4", "zstd"):
        client.send_batch(topic, rows, compression=compression)
    assert client.send(topic, b"x", acks="memory").offset == 300
    found = [batch.header.compression for batch in client.fetch_batches(topic, 0, 0, 300)]
    assert [each.name.lower() for each in found] == ["none", "lz4", "zstd"]


def test_a_call_on_an_event_loop_works_unless_it_would_wait_for_itself(
    client: lakemq.SyncClient, topic: str
) -> None:
    async def elsewhere() -> int:
        return client.send(topic, b"x").offset

    async def on_its_own_loop() -> None:
        client.topics()

    assert asyncio.run(elsewhere()) == 0
    with pytest.raises(lakemq.InvalidRequest, match="would wait for ever"):
        client.run(on_its_own_loop)


def test_callbacks_may_call_the_client(client: lakemq.SyncClient, topic: str) -> None:
    client.send(topic, b"x")
    told: list[str] = []

    def assigned(partitions: frozenset[lakemq.TopicPartition]) -> None:
        told.append(client.describe_topic(next(iter(partitions)).topic).name)

    def revoked(_: frozenset[lakemq.TopicPartition]) -> None:
        consumer.commit()
        told.append("committed")

    with client.subscribe(topic, group=topic, on_assigned=assigned, on_revoked=revoked) as consumer:
        assert next(iter(consumer)).value == b"x"
    assert told == [topic, "committed"]
    assert [each.committed_offset for each in client.describe_group(topic).offsets] == [1]


def test_closing_ends_a_call_in_another_thread(node: NodeProcess, topic: str) -> None:
    client = lakemq.connect(node.native)
    consumer = client.subscribe(topic, group=topic).__enter__()
    raised: list[BaseException] = []

    def read() -> None:
        try:
            next(iter(consumer))
        except lakemq.LakeMQError as error:
            raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    while not consumer.assignment:
        time.sleep(0.01)
    client.close()
    thread.join(10)
    assert [type(each) for each in raised] == [lakemq.InvalidRequest]
    consumer.__exit__(None, None, None)  # it was closed with its client
    with pytest.raises(lakemq.InvalidRequest, match="closed"):
        client.topics()
    client.close()


def test_a_client_that_is_dropped_ends_its_thread(node: NodeProcess, topic: str) -> None:
    gc.collect()
    before = loop_threads()
    client = lakemq.connect(node.native)
    client.send(topic, b"x")
    assert loop_threads() == before + 1
    del client
    gc.collect()
    deadline = time.monotonic() + 10
    while loop_threads() > before:
        assert time.monotonic() < deadline
        time.sleep(0.05)


LEFT_OPEN = """
import sys, lakemq
client = lakemq.connect(sys.argv[1])
client.send(sys.argv[2], b"x")
consumer = client.subscribe(sys.argv[2], group="left-open")
consumer.__enter__()
assert next(iter(consumer)).value == b"x"
queue = client.queue(sys.argv[2], group="left-open-queue")
queue.__enter__()
"""

FORKED = """
import os, sys, lakemq
client = lakemq.connect(sys.argv[1])
client.topics()
if not os.fork():
    try:
        client.topics()
    except lakemq.InvalidRequest as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
print(len(client.topics()) > 0)
client.close()
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-W", "ignore::DeprecationWarning", "-c",
         script, *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_program_that_does_not_close_ends_in_silence(node: NodeProcess, topic: str) -> None:
    ended = run(LEFT_OPEN, node.native, topic)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_forked_process_is_told_to_make_its_own_client(node: NodeProcess, topic: str) -> None:
    ended = run(FORKED, node.native)
    assert ended.returncode == 0
    assert ended.stdout == ("this client was made before a fork; make one in every process\nTrue\n")
