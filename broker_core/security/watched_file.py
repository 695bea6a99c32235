"""A file that is read again when it changed."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from broker_core.api.errors import ConfigError, LakeMQError

T = TypeVar("T")
log = logging.getLogger(__name__)
LOOK_EVERY_S: Final = 1.0


class WatchedFile(Generic[T]):
    """What a file holds, as `read` understands its bytes.

    A file that is missing or wrong when the node starts is a ConfigError; later, what was read
    last holds on and the fault is logged once.
    """

    def __init__(self, path: str, read: Callable[[bytes], T]) -> None:
        self.path = Path(path)
        self._read = read
        self._stamp: tuple[int, int, int] | None = None
        self._fault = ""
        self._looked_s = time.monotonic()
        try:
            self._stamp = self._look()
            self._value = read(self.path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{self.path}: not UTF-8") from None
        except LakeMQError as error:
            raise ConfigError(f"{self.path}: {error}") from None

    def current(self) -> T:
        """What the file held when it was last looked at, at most a second ago."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self.refresh()
        return self._value

    def refresh(self) -> bool:
        """Look now; True when the file held something new."""
        try:
            stamp = self._look()
            if stamp == self._stamp:
                return False
            value = self._read(self.path.read_bytes())
        except (OSError, UnicodeDecodeError, LakeMQError) as error:
            if str(error) != self._fault:
                log.error("%s: kept as it was read before: %s", self.path, error)
            self._fault = str(error)
            return False
        self._value, self._stamp, self._fault = value, stamp, ""
        log.info("%s was read again", self.path)
        return True

    def _look(self) -> tuple[int, int, int]:
        status = os.stat(self.path)
        return status.st_ino, status.st_mtime_ns, status.st_size
