"""The file layer: the only module of the journal that opens, writes, fsyncs or renames.

Everything else asks a `Files` object, so tests put a simulated disk in its place that drops
un-synced writes, tears pages and fails at the n-th call. Every method may raise OSError; none
retries, but for a folder's descriptor. A write is durable only after `sync` of its file, a new name
only after `sync_folder` of its folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from lakemq.broker_core.api.state.durable_files import sync_all, sync_data

_BUFFERS_MAX: Final = 1024
"""Most buffers one `pwritev` takes (Linux IOV_MAX)."""
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers that mean: try again when there is room."""
NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
"""Error numbers that mean: nothing was opened; try again when other files or sockets are closed."""
OPEN_FILES_FEW: Final = 4096
"""A node with fewer descriptors is soon out of them: partitions and connections take one each."""
_OPEN_FILES_MACOS: Final = 10_240
_FOLDER_WAIT_S: Final = 60.0
_FOLDER_PAUSE_S: Final = 0.05
NEW_SUFFIX: Final = ".new"
"""A file that is being written and shall replace another; a leftover one means nothing."""


class FileHandle(Protocol):
    """One open file."""

    def write_at(self, position: int, buffers: Sequence[bytes]) -> None:
        """Write all buffers back to back; on an error any part of them may have been written."""

    def read_at(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def sync(self) -> None:
        """Make what was written, and the file's size, durable."""

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it with zeros, to `size` bytes."""

    def size(self) -> int:
        """Length of the file (bytes)."""

    def close(self) -> None:
        """Release the descriptor; nothing is made durable."""


class Files(Protocol):
    """A disk."""

    def create(self, path: Path) -> FileHandle:
        """Open for reading and writing, emptied if it exists."""

    def open(self, path: Path, *, writable: bool = False) -> FileHandle:
        """Open what exists. Raises FileNotFoundError."""

    def read(self, path: Path) -> bytes:
        """The whole file. Raises FileNotFoundError."""

    def size(self, path: Path) -> int:
        """Length of the file (bytes). Raises FileNotFoundError."""

    def rename(self, old: Path, new: Path) -> None:
        """Atomic; replaces what is at `new`. Durable after `sync_folder`."""

    def remove(self, path: Path) -> None:
        """Remove a file; nothing happens if there is none. Durable after `sync_folder`."""

    def make_folder(self, path: Path) -> None:
        """Create the folder and those above it; nothing happens if it is there."""

    def remove_folder(self, path: Path) -> None:
        """Remove the folder and all that is in it."""

    def sync_folder(self, path: Path) -> None:
        """Make names in the folder (created, renamed, removed) durable."""

    def names(self, path: Path) -> list[str]:
        """Sorted; empty if there is no such folder."""

    def exists(self, path: Path) -> bool:
        """Whether a file or folder is there."""

    def free_bytes(self, path: Path) -> int:
        """What may still be written to the file system of `path` (bytes)."""


class DiskFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o640)

    def write_at(self, position: int, buffers: Sequence[bytes]) -> None:
        """Write all buffers back to back from `position` (bytes) on. OSError: any part of them may
        have been written."""
        for first in range(0, len(buffers), _BUFFERS_MAX):
            some = buffers[first : first + _BUFFERS_MAX]
            size = sum(map(len, some))
            written = os.pwritev(self._descriptor, some, position)
            if written < size:
                self._write_rest(position + written, memoryview(b"".join(some))[written:])
            position += size

    def _write_rest(self, position: int, rest: memoryview) -> None:
        """Finish a short write: the kernel says why it was short at the next attempt."""
        while rest:
            written = os.pwrite(self._descriptor, rest, position)
            if written == 0:
                raise OSError(errno.EIO, "write made no progress")
            position += written
            rest = rest[written:]

    def read_at(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position` on; fewer only at the end of the file."""
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts, got = [data], len(data)
        while got < size:
            more = os.pread(self._descriptor, size - got, position + got)
            if not more:
                break
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def sync(self) -> None:
        """Make what was written, and the file's size, durable."""
        sync_data(self._descriptor)

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes; durable after `sync`."""
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        """Size of the file in bytes."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Give the descriptor back; nothing is synced."""
        os.close(self._descriptor)


class DiskFiles:
    """The operating system's files."""

    def create(self, path: Path) -> FileHandle:
        """Open for reading and writing, emptied if it exists; its name is durable after
        `sync_folder`."""
        return DiskFile(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def open(self, path: Path, *, writable: bool = False) -> FileHandle:
        """Open a file that exists, to read or, if `writable`, to write too. FileNotFoundError."""
        return DiskFile(path, os.O_RDWR if writable else os.O_RDONLY)

    def read(self, path: Path) -> bytes:
        """The whole content of a file. FileNotFoundError."""
        return path.read_bytes()

    def size(self, path: Path) -> int:
        """Size of a file in bytes. FileNotFoundError."""
        return path.stat().st_size

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name, in place of a file that has it; readers see the old or the new
        one."""
        old.replace(new)

    def remove(self, path: Path) -> None:
        """Remove a file; nothing happens if there is none."""
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        """Create the folder and those above it; nothing happens if it is there."""
        path.mkdir(parents=True, exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(path)

    def sync_folder(self, path: Path) -> None:
        """Make names in the folder (created, renamed, removed) durable."""
        descriptor = _open_folder(path)
        try:
            sync_all(descriptor)
        finally:
            os.close(descriptor)

    def names(self, path: Path) -> list[str]:
        """Names in the folder, sorted; empty if there is no such folder."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        """Whether there is a file or folder of that path."""
        return path.exists()

    def free_bytes(self, path: Path) -> int:
        """Bytes that this process may still write to the file system of `path`."""
        space = os.statvfs(path)
        # f_bavail, not f_bfree: blocks that only root may use do not count.
        return space.f_bavail * space.f_frsize


def _open_folder(path: Path) -> int:
    """The folder's descriptor. What is renamed in it is not known to be durable before it is
    synced, so a process without descriptors waits for one a while, and not only tries."""
    deadline = time.monotonic() + _FOLDER_WAIT_S
    while True:
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR or time.monotonic() > deadline:
                raise
        time.sleep(_FOLDER_PAUSE_S)


class FolderLock:
    """Keeps a second process out of a folder for as long as this one lives."""

    def __init__(self, path: Path) -> None:
        """BlockingIOError: another process holds it."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            # Of the descriptor: the kernel releases it when the process ends, however it ends, so
            # no stale lock keeps the next start out.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        """Let another process in."""
        os.close(self._descriptor)


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """Give `path` new content: after a crash it has the old or the new one, never a mixture.

    That it is the new one is certain only after `sync_folder` of its folder.
    """
    new = path.with_name(path.name + NEW_SUFFIX)
    handle = files.create(new)
    try:
        handle.write_at(0, [data])
        handle.sync()
    finally:
        handle.close()
    # Behind the sync: renamed before, the name could survive a crash without the content.
    files.rename(new, path)


def raise_open_files_limit() -> int:
    """Let this process open as many files as its hard limit allows; returns that number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            # macOS says "unlimited", and takes OPEN_MAX at most (setrlimit(2)).
            most = max(soft, _OPEN_FILES_MACOS)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return hard
