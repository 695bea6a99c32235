"""Lines of a file, a pipe or a terminal as they come, in groups: what arrives in a moment is one
group, a signal ends it.
"""

from __future__ import annotations

import io
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import IO, Any, Final, Self

LINGER_S: Final = 0.1
LINES_MAX: Final = 10_000
BYTES_MAX: Final = 8 * 1024 * 1024
"""Of one group, about; a line that is longer is a group of its own."""
_READ_BYTES: Final = 256 * 1024
_WAITS_FOR_FILES: Final = os.name == "posix"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class LineReader:
    """Iterate it for groups of lines, as a context manager. A first SIGINT or SIGTERM ends it with
    what was read; a second one does what it always does."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._descriptor = _descriptor(source)
        self.signal: int | None = None
        """What has put an end to it."""
        self.unfinished = False
        """Whether the end of a line was missing when it was ended; that line is left out."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        with suppress(ValueError):  # in another thread than the main one
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        # From now on a second signal has its usual effect.
        self._restore()

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def __iter__(self) -> Iterator[list[bytes]]:
        lines: list[bytes] = []
        size, rest, since = 0, b"", 0.0
        while self.signal is None:
            data = self._read(None if not lines else since + LINGER_S - time.monotonic())
            if data == b"":
                break
            if data is not None:
                if not lines:
                    since = time.monotonic()
                *whole, rest = (rest + data).split(b"\n")
                lines += whole
                size += len(data)
            full = len(lines) >= LINES_MAX or size >= BYTES_MAX or self._descriptor is None
            if lines and (full or data is None or time.monotonic() >= since + LINGER_S):
                yield from _groups(lines)
                lines, size = [], 0
        if rest and self.signal is None:
            lines.append(rest)
        self.unfinished = bool(rest) and self.signal is not None
        yield from _groups(lines)

    def rest(self, bytes_max: int) -> bytes | None:
        """All up to the end, not cut into lines; None if that is more than `bytes_max`."""
        parts, size = list[bytes](), 0
        while self.signal is None and (data := self._read(None)):
            parts.append(data)
            size += len(data)
            if size > bytes_max:
                return None
        return b"".join(parts)

    def _read(self, wait_s: float | None) -> bytes | None:
        """What is there, after waiting for it; b"": the end; None: nothing came in time."""
        if self._descriptor is None:
            # What is there, where the source can tell.
            return getattr(self._source, "read1", self._source.read)(_READ_BYTES)
        while self.signal is None:
            # A signal does not end the call, so that it must come back now and then.
            pause_s = LINGER_S if wait_s is None else max(0.0, min(wait_s, LINGER_S))
            if select.select([self._descriptor], [], [], pause_s)[0]:
                return os.read(self._descriptor, _READ_BYTES)
            if wait_s is not None:
                return None
        return None


def _groups(lines: list[bytes]) -> Iterator[list[bytes]]:
    for first in range(0, len(lines), LINES_MAX):
        yield [line.rstrip(b"\r") for line in lines[first : first + LINES_MAX]]


def _descriptor(source: IO[bytes]) -> int | None:
    """None: it can't be waited for; Windows waits for sockets only (select() of Winsock)."""
    if not _WAITS_FOR_FILES:
        return None
    try:
        return source.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return None
