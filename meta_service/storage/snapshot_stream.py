"""A snapshot folder as one run of bytes, for its way to another member.

Length of the manifest (4 bytes, little-endian), the manifest (MessagePack: name, size, SHA-256 of
each file, in the order of names), then the files back to back.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgpack

from lakemq.meta_service.raft.log.files import sync_folder, sync_tree

MANIFEST_NAME: Final = "lakemq.manifest"
_MANIFEST_MAX_BYTES: Final = 4 * 1024 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class BadSnapshot(Exception):
    """A received snapshot that is not what its manifest says."""


class FileNote(NamedTuple):
    """What the manifest says of one file."""

    name: str
    size: int
    sha256: bytes


def _hash_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def write_manifest(folder: Path) -> None:
    """Note size and hash of every file of a finished snapshot."""
    notes = [
        FileNote(path.name, path.stat().st_size, _hash_file(path))
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST_NAME
    ]
    (folder / MANIFEST_NAME).write_bytes(msgpack.packb(notes, use_bin_type=True))


def parse_manifest(data: bytes) -> list[FileNote]:
    """Raises BadSnapshot."""
    try:
        notes = [FileNote(*note) for note in msgpack.unpackb(data, use_list=False, raw=False)]
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise BadSnapshot(f"unreadable manifest: {error}") from error
    for note in notes:
        _check_note(*note)
    if len({note.name for note in notes}) != len(notes):
        raise BadSnapshot("a file is named twice")
    return notes


def _check_note(name: object, size: object, sha256: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        # Names come from another member: one with a slash could leave the folder.
        raise BadSnapshot(f"file name {name!r}")
    if not isinstance(size, int) or size < 0 or not isinstance(sha256, bytes):
        raise BadSnapshot(f"note of file {name}")


def is_whole(folder: Path) -> bool:
    """Whether every file is what the manifest says. Reads everything."""
    try:
        notes = parse_manifest((folder / MANIFEST_NAME).read_bytes())
        return all(
            (folder / note.name).stat().st_size == note.size
            and _hash_file(folder / note.name) == note.sha256
            for note in notes
        )
    except (OSError, BadSnapshot):
        return False


class FolderSource:
    """Implements `SnapshotSource` over a durable snapshot folder."""

    def __init__(self, folder: Path, log_index: int, term: int) -> None:
        self.log_index, self.term = log_index, term
        manifest = (folder / MANIFEST_NAME).read_bytes()
        self._head = len(manifest).to_bytes(4, "little") + manifest
        self._files: list[tuple[int, int, BinaryIO]] = []
        """(first position, position behind, open file): stays readable if it is deleted."""
        self.size = len(self._head)
        for note in parse_manifest(manifest):
            file = (folder / note.name).open("rb")
            self._files.append((self.size, self.size + note.size, file))
            self.size += note.size

    def read(self, position: int, count: int) -> bytes:
        """Up to `count` bytes from `position`, across files; fewer at the end."""
        parts = [self._head[position : position + count]]
        end = position + count
        for first, behind, file in self._files:
            start, stop = max(position, first), min(end, behind)
            if start < stop:
                # `pread` moves no file position: several chunks may be read at once.
                parts.append(os.pread(file.fileno(), stop - start, start - first))
        return b"".join(parts)

    def close(self) -> None:
        """Close all files."""
        for _, _, file in self._files:
            file.close()


class FolderSink:
    """Implements `SnapshotSink`: writes to a partial folder, checks it, gives it its name."""

    def __init__(self, partial: Path, target: Path, log_index: int, term: int, size: int) -> None:
        self.log_index, self.term, self.size = log_index, term, size
        self.position = 0
        self.path = target
        self._partial = partial
        self._head = bytearray()
        self._notes: list[FileNote] | None = None
        self._number = 0
        self._file: BinaryIO | None = None
        self._left = 0
        self._bad = False
        self._good: bool | None = None
        self._worker: threading.Thread | None = None
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)

    def write(self, data: bytes) -> None:
        """Take the next bytes; `sealed` is False if they do not fit the manifest."""
        self.position += len(data)
        if self._bad:
            return
        try:
            self._take(memoryview(data))
        except BadSnapshot:
            # The position goes on, so that the transfer ends and its check fails, instead of
            # repeating one chunk for ever.
            self._bad = True

    def _take(self, data: memoryview) -> None:
        if self._notes is None:
            self._head += data
            if len(self._head) < 4:
                return
            length = int.from_bytes(self._head[:4], "little")
            # Before anything is kept: a sender must not make this member hold gigabytes.
            if length > min(_MANIFEST_MAX_BYTES, self.size):
                raise BadSnapshot(f"a manifest of {length} bytes")
            if len(self._head) < 4 + length:
                return
            self._begin_files(bytes(self._head[4 : 4 + length]))
            data = memoryview(bytes(self._head[4 + length :]))
        while data:
            if self._file is None:
                raise BadSnapshot("more bytes than the manifest says")
            part = data[: self._left]
            self._file.write(part)
            self._left -= len(part)
            data = data[len(part) :]
            if not self._left:
                self._next_file()

    def _begin_files(self, manifest: bytes) -> None:
        self._notes = parse_manifest(manifest)
        if 4 + len(manifest) + sum(note.size for note in self._notes) != self.size:
            raise BadSnapshot("the sizes do not add up")
        (self._partial / MANIFEST_NAME).write_bytes(manifest)
        self._next_file()

    def _next_file(self) -> None:
        """Open the next file that has bytes; empty ones are made on the way."""
        if self._file is not None:
            self._file.close()
            self._file = None
        assert self._notes is not None
        while self._number < len(self._notes) and not self._left:
            note = self._notes[self._number]
            self._number += 1
            self._file = (self._partial / note.name).open("wb")
            self._left = note.size
            if not note.size:
                self._file.close()
                self._file = None

    def seal(self) -> None:
        """Check and sync in a thread: it reads every byte, and the Raft thread must not wait."""
        self._worker = threading.Thread(target=self._check, name="meta-snapshot-in", daemon=True)
        self._worker.start()

    def _check(self) -> None:
        try:
            if self._bad or self._file is not None or not is_whole(self._partial):
                self._good = False
                return
            sync_tree(self._partial)
            shutil.rmtree(self.path, ignore_errors=True)
            # Content first, name last: a folder with this name is whole after any crash.
            self._partial.rename(self.path)
            sync_folder(self.path.parent)
            self._good = True
        except OSError:
            self._good = False

    def sealed(self) -> bool | None:
        """Whether all is right and durable under its name; None: not known yet."""
        return self._good

    def discard(self) -> None:
        """Delete what was received; waits for the check."""
        if self._worker is not None:
            self._worker.join()
        if self._file is not None:
            self._file.close()
        shutil.rmtree(self._partial, ignore_errors=True)
