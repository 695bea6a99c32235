"""Goal: a node that has no file descriptor left says "try again", and goes on when there are some
again; it never ends for that.

The limit of the running process is lowered to what it has open, so the very next file, folder or
socket is one too many.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lakemq
from tests.support.node.node import PORTS_FREE, NodeProcess

pytestmark = pytest.mark.fault


def descriptors(node: NodeProcess) -> set[int]:
    """Those that stay: a node that has just started reads files of modules in a thread."""
    found: list[set[int]] = []
    while len(found) < 5 or any(each != found[-1] for each in found[-5:]):
        found.append({int(name) for name in os.listdir(f"/proc/{node.pid}/fd")})
        time.sleep(0.1)
    return found[-1]


@contextmanager
def no_descriptor_left(node: NodeProcess) -> Iterator[None]:
    soft, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    used = descriptors(node)
    # The first hole would still be given out.
    free = next(number for number in range(max(used) + 2) if number not in used)
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (soft, hard))


def test_a_topic_made_without_descriptors_is_there_once_there_are_some(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, PORTS_FREE) as node, lakemq.connect(node.native) as client:
        client.create_topic("before")
        with no_descriptor_left(node):
            with pytest.raises(lakemq.LakeMQError) as refused:
                client.create_topic("during", partitions=3)
            assert refused.value.retriable, refused.value
        deadline = time.monotonic() + 60
        while True:
            try:
                assert client.send("during", b"x").offset == 0
                break
            except lakemq.LakeMQError:
                assert node.process is not None and node.process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert client.send("before", b"x").offset == 0


def test_a_low_limit_is_raised_as_far_as_it_goes_and_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    limits = "ulimit -S -n 512\nulimit -H -n 1024"
    python.write_text(f'#!/bin/sh\n{limits}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with NodeProcess(tmp_path, PORTS_FREE, python=str(python)) as node:
        assert resource.prlimit(node.pid, resource.RLIMIT_NOFILE) == (1024, 1024)
        assert "may open 1024 files" in node.log_file.read_text()
