"""The thread_queue of the Raft thread."""

from __future__ import annotations

import os
import tempfile

from lakemq.meta_service.raft.thread_queue import ThreadQueue


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
