"""The mailbox of the Raft thread."""

from __future__ import annotations

import os
import tempfile

from lakemq.meta_service.raft.thread_queue import Mailbox


def test_calls_run_in_order() -> None:
    mailbox, seen = Mailbox(), []
    for number in range(100):
        mailbox.post(lambda number=number: seen.append(number))  # type: ignore[misc]
    mailbox.poll(0.0)
    assert seen == list(range(100))
    mailbox.close()


def test_a_post_after_the_end_writes_into_nobody_elses_file() -> None:
    """The descriptor's number is given to the next file that is opened."""
    mailbox = Mailbox()
    mailbox.close()
    with tempfile.TemporaryFile() as file:
        mailbox.post(lambda: None)
        assert os.fstat(file.fileno()).st_size == 0
