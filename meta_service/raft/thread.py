"""The one thread in which Raft lives. The rest of the process posts calls to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from lakemq.meta_service.raft.node import RaftNode
from lakemq.meta_service.raft.thread_queue import ThreadQueue

_WAIT_S: Final = 0.02
"""Longest wait of one tick, so that heartbeats and elections are on time."""
_WAIT_ALONE_S: Final = 0.2
"""The same of a leader without other members, which has neither: calls that are posted wake it."""


class RaftThread:
    """Ticks a node until it is stopped or its disk fails."""

    def __init__(
        self, node: RaftNode, thread_queue: ThreadQueue, on_failed: Callable[[BaseException], None]
    ) -> None:
        self._node = node
        self._thread_queue = thread_queue
        self._on_failed = on_failed
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="meta-raft", daemon=True)
        thread_queue.is_busy = node.is_busy

    def start(self) -> None:
        """Begin to tick; the thread is a daemon, so that it never keeps a process alive."""
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._node.tick(_WAIT_ALONE_S if self._node.leads_alone else _WAIT_S)
        except BaseException as error:
            # Whatever it was, what is in memory cannot be trusted: send and acknowledge nothing.
            self._on_failed(error)
        finally:
            self._node.stop()

    def stop(self) -> None:
        """Blocks until the thread has ended."""
        if self._thread.ident is None:
            self._node.stop()  # it was never started
        else:
            # Posted and not set from here, so that calls posted before are still run.
            self._thread_queue.post(self._mark_stopping)
            self._thread.join()
        self._thread_queue.close()

    def _mark_stopping(self) -> None:
        self._stopping = True
