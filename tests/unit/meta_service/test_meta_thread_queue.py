"""The Raft thread: its queue of calls, and how long it waits for them in one tick."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from typing import Any

import pytest

from lakemq.meta_service.raft.thread import RaftThread
from lakemq.meta_service.raft.thread_queue import ThreadQueue


@pytest.fixture(params=["eventfd", "pipe"], autouse=True)
def _woken_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pipe":  # macOS
        monkeypatch.delattr(os, "eventfd")


def test_a_post_ends_waiting() -> None:
    thread_queue, seen = ThreadQueue(), list[int]()
    threading.Timer(0.05, thread_queue.post, [lambda: seen.append(1)]).start()
    began = time.monotonic()
    thread_queue.poll(60.0)
    assert seen == [1] and time.monotonic() - began < 30
    thread_queue.poll(0.0)  # nothing of the post is left that would end it at once
    began = time.monotonic()
    thread_queue.poll(0.05)
    assert time.monotonic() - began > 0.04
    thread_queue.close()


def test_calls_run_in_order() -> None:
    thread_queue, seen = ThreadQueue(), []
    for number in range(100):
        thread_queue.post(lambda number=number: seen.append(number))  # type: ignore[misc]
    thread_queue.poll(0.0)
    assert seen == list(range(100))
    thread_queue.close()


def test_a_post_after_the_end_writes_into_nobody_elses_file() -> None:
    """The descriptor's number is given to the next file that is opened."""
    thread_queue = ThreadQueue()
    thread_queue.close()
    with tempfile.TemporaryFile() as file:
        thread_queue.post(lambda: None)
        assert os.fstat(file.fileno()).st_size == 0


class Node:
    """Leads alone in its second and third tick, and fails in its fifth."""

    leads_alone = False

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    def is_busy(self) -> bool:
        return False

    def tick(self, wait_s: float) -> None:
        self.waits_s.append(wait_s)
        self.leads_alone = len(self.waits_s) in (1, 2)
        if len(self.waits_s) == 5:
            raise OSError("the disk is gone")

    def stop(self) -> None:
        pass


def test_only_a_leader_without_other_members_waits_longer_than_heartbeats_allow() -> None:
    node: Any = Node()
    failed: list[BaseException] = []
    thread = RaftThread(node, ThreadQueue(), failed.append)
    thread.start()
    thread.stop()
    assert len(failed) == 1
    first, *alone, fourth, fifth = node.waits_s
    assert first == fourth == fifth <= 0.02
    assert alone[0] == alone[1] > first
