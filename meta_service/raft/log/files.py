"""The only module of the Raft log that touches files. The simulation puts its own disk here.

A `Disk` is one folder. Names are plain file names inside it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Protocol

from lakemq.meta_service.api.durable_files import sync_all, sync_data


class File(Protocol):
    """An open file. What `write` and `truncate` did survives a crash only after `sync`."""

    def read(self) -> bytes:
        """The whole content. Raises OSError, as all of these do."""

    def write(self, position: int, data: bytes) -> None:
        """All of `data`, from a byte position on."""

    def truncate(self, size: int) -> None:
        """Cut to `size` bytes."""

    def sync(self) -> None:
        """Make content and size durable."""

    def close(self) -> None:
        """Release the file; nothing is made durable."""


class Disk(Protocol):
    """A folder. `replace` is atomic; it and `remove` are durable when they return."""

    def exists(self, name: str) -> bool:
        """Whether a file of that name is there."""

    def open(self, name: str, *, fresh: bool = False) -> File:
        """`fresh`: a new, empty file under that name."""

    def replace(self, source: str, target: str) -> None:
        """Rename `source` to `target`, in place of what is there."""

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens if it is missing."""


class FolderFile:
    """A file of the operating system."""

    def __init__(self, path: Path, *, fresh: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if fresh else 0)
        self._descriptor = os.open(path, flags, 0o600)

    def read(self) -> bytes:
        """The whole file."""
        size = os.fstat(self._descriptor).st_size
        parts: list[bytes] = []
        position = 0
        while position < size:
            # Linux reads at most 2 GiB at once, and either call may transfer less than was asked
            # for.
            part = os.pread(self._descriptor, size - position, position)
            if not part:
                break
            parts.append(part)
            position += len(part)
        return b"".join(parts)

    def write(self, position: int, data: bytes) -> None:
        """Write all of `data` from a byte position on; raises OSError."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, position)
            position += written
            view = view[written:]

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes; raises OSError."""
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Make content and length durable; raises OSError."""
        sync_data(self._descriptor)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Folder:
    """A folder of the operating system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def exists(self, name: str) -> bool:
        """Whether a file of that name is there."""
        return (self.path / name).exists()

    def open(self, name: str, *, fresh: bool = False) -> FolderFile:
        """Open for reading and writing, created where it is missing, emptied if `fresh`."""
        return FolderFile(self.path / name, fresh=fresh)

    def replace(self, source: str, target: str) -> None:
        """Rename over `target` atomically; durable when it returns."""
        (self.path / source).rename(self.path / target)
        sync_folder(self.path)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there; durable when it returns."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / name).unlink()
            sync_folder(self.path)


def sync_folder(path: Path) -> None:
    """Make renames and new names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_all(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Make every file below a folder durable, then the folders."""
    for folder, _, names in os.walk(path):
        for name in names:
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                sync_all(descriptor)
            finally:
                os.close(descriptor)
        # The folder behind its files: a durable name must never lead to content that is not.
        sync_folder(Path(folder))
