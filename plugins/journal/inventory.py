"""Inventory: every partition that this disk holds, so that what is missing is not taken for new.

A line is appended and fsynced when a partition's folder has been made and before anything is
appended to its log, and again before the folder is deleted. Whatever the inventory has and the disk
has not was lost: it may have held records that this node said it had.

Text, `docs/formats/journal.md`: a line `LMQV 1`, then per change `+` or `-`, topic id, partition,
and the CRC-32C of these in 8 hex digits, blanks between.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

import google_crc32c

from lakemq.plugins.journal.segment.files import Files, replace_file

_log = logging.getLogger(__name__)
INVENTORY_NAME: Final = "inventory"
_FIRST_LINE: Final = b"LMQV 1\n"
_DEAD_LINES_MAX: Final = 1000
"""So many lines more than twice as many as are needed, and the file is written again."""

Key = tuple[str, int]
"""(topic id, partition)"""


class Inventory:
    """The inventory of one journal. Blocking; thread-safe once it is loaded."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder
        self._path = folder / INVENTORY_NAME
        self._lock = threading.Lock()
        self._keys: set[Key] = set()
        self._size = 0

    def load(self, present: Collection[Key]) -> set[Key]:
        """Read the file, or begin it, and take in the partitions that are there; returns those that
        are missing. Raises OSError."""
        with self._lock:
            data = self._files.read(self._path) if self._files.exists(self._path) else b""
            known, lines, size = decode_inventory(data)
            self._keys, self._size = known | set(present), size
            too_long = lines > 2 * len(self._keys) + _DEAD_LINES_MAX
            if size < len(_FIRST_LINE) or size < len(data) or known != self._keys or too_long:
                data = _FIRST_LINE + _lines(b"+", self._keys)
                replace_file(self._files, self._path, data)
                self._files.sync_folder(self._folder)
                self._size = len(data)
            return known - set(present)

    def partitions(self) -> set[Key]:
        """What this disk holds, or has lost."""
        with self._lock:
            return set(self._keys)

    def add(self, key: Key) -> None:
        """Durable when this returns. Raises OSError."""
        with self._lock:
            if key not in self._keys:
                self._append(_lines(b"+", [key]))
                self._keys.add(key)

    def remove(self, keys: Iterable[Key]) -> None:
        """Durable when this returns. Raises OSError."""
        with self._lock:
            gone = self._keys.intersection(keys)
            if gone:
                self._append(_lines(b"-", gone))
                self._keys -= gone

    def _append(self, lines: bytes) -> None:
        with closing(self._files.open(self._path, writable=True)) as handle:
            # By position: what a failed append left behind is written over.
            handle.write_at(self._size, [lines])
            handle.sync()
        self._size += len(lines)


def _lines(sign: bytes, keys: Iterable[Key]) -> bytes:
    return b"".join(_line(sign, key) for key in sorted(keys))


def _line(sign: bytes, key: Key) -> bytes:
    text = b"%s %s %d" % (sign, key[0].encode(), key[1])
    return b"%s %08x\n" % (text, google_crc32c.value(text))


def decode_inventory(data: bytes) -> tuple[set[Key], int, int]:
    """(partitions, number of whole lines, bytes up to the end of the last whole one). A line whose
    CRC does not match is left out and reported; a last one without its end was torn."""
    keys: set[Key] = set()
    if not data.startswith(_FIRST_LINE):
        if data:
            _log.error("the inventory begins with %r; it is made again", data[:40])
        return keys, 0, 0
    end = data.rfind(b"\n") + 1
    lines = data[len(_FIRST_LINE) : end].splitlines()
    for line in lines:
        text, _, crc = line.rpartition(b" ")
        words = text.split(b" ")
        if crc != b"%08x" % google_crc32c.value(text) or len(words) != 3:
            _log.error("a line of the inventory is damaged: %r", line[:100])
            continue
        key = (words[1].decode(), int(words[2]))
        keys.add(key) if words[0] == b"+" else keys.discard(key)
    return keys, len(lines), end
