"""What files hold, read again when one of them was replaced: certificates, rules, users."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

from lakemq.broker_core.api.errors import LakeMQError

T = TypeVar("T")
_log = logging.getLogger(__name__)
LOOK_EVERY_S: Final = 1.0
"""How often `look` and `current` ask the file system at most (s)."""


class WatchedFiles(Generic[T]):
    """A value that is made from files, and made again when one of them changed.

    What is wrong with the files at the start is the caller's to see: `load` raises it. Later a
    fault (OSError, ValueError, LakeMQError) is logged once and the last good value stays in use, so
    a certificate and its key may be replaced one after the other. Methods may be called by any
    thread.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]], load: Callable[[], T]) -> None:
        self.paths = tuple(os.fspath(path) for path in paths)
        self._load = load
        self._fault = ""
        self._lock = threading.Lock()
        self._looked_s = time.monotonic()
        self._stamps: list[tuple[int, int, int]] = []
        with suppress(OSError):  # `load` says it better
            self._stamps = self._stamp()  # before loading: what is replaced meanwhile is noticed
        self.value = load()
        """What the files held when they were last read."""

    def current(self) -> T:
        """The value, at most LOOK_EVERY_S behind the files."""
        self.look()
        return self.value

    def look(self) -> bool:
        """Refresh, unless that was done within LOOK_EVERY_S; True: there is a new value."""
        now_s = time.monotonic()
        # Without the lock: two threads that both go on do no more than look twice.
        if now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        return self.refresh()

    def refresh(self) -> bool:
        """Read the files again if one of them changed; True: there is a new value."""
        with self._lock:
            try:
                stamps = self._stamp()
                if stamps == self._stamps:
                    return False
                value = self._load()
            except (OSError, ValueError, LakeMQError) as error:
                self._report(str(error))
                return False
            self.value, self._stamps, self._fault = value, stamps, ""
        _log.info("reloaded %s", ", ".join(self.paths))
        return True

    def _report(self, fault: str) -> None:
        if fault != self._fault:
            names = ", ".join(self.paths)
            _log.warning("could not reload %s, the previous version stays in use: %s", names, fault)
        self._fault = fault

    def _stamp(self) -> list[tuple[int, int, int]]:
        """Inode, change time and size of each file: what replacing or rewriting it changes."""
        found = [os.stat(path) for path in self.paths]
        return [(each.st_ino, each.st_mtime_ns, each.st_size) for each in found]
