"""Data files of a table: attempt folders, Parquet writing, orphans.

Every attempt to commit writes into a folder of its own, which the driver creates:
`<location>/lakemq-<export id>/<topic>/<epoch>-<attempt>-<random>/`; no two attempts share one. An
attempt of an older epoch whose number is above the last committed one, seen after a new epoch was
taken, can never be committed: its folder is deleted. Tasks never create folders, so a task of a
dead driver that still runs then fails.

Files of a committed attempt that its commit does not refer to (of tasks that Spark ran twice) are
noted in `<attempt folder>.strays`. A process with a later epoch deletes them once they are old."""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lakemq.spark_plugin.errors import TableError
from lakemq.spark_plugin.export.tables.storage import (
    create_object,
    file_system,
    is_azure,
    is_s3,
    path_in_bucket,
)
from lakemq.spark_plugin.export.tables.table import ExportKey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

PREFIX: Final = "lakemq-"
NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})
STRAY_AGE_MIN_S: Final = 3600.0
"""A stray file that changed later than this long ago is left alone."""
_STRAYS: Final = ".strays"


class Folder:
    """A folder on any file system that pyarrow knows; paths are relative to it, with `/`."""

    def __init__(self, location: str, storage: Mapping[str, str] = NO_OPTIONS) -> None:
        """`storage`: options for an object store, as in `Target`."""
        import pyarrow as pa
        from pyarrow import fs

        self._storage = storage
        try:
            self._files, self._root = file_system(location, storage)
        except (pa.ArrowInvalid, ValueError):
            self._files, self._root = fs.LocalFileSystem(), os.path.abspath(location)
        except pa.ArrowException as error:
            raise TableError(f"{location}: {error}") from None
        self.local = isinstance(self._files, fs.LocalFileSystem)
        self._location = location.rstrip("/")

    @property
    def filesystem(self) -> fs.FileSystem:
        """The pyarrow file system of the folder."""
        return self._files

    def full_path(self, path: str) -> str:
        """The path as the file system has it."""
        return posixpath.join(self._root, path) if path else self._root

    def uri(self, path: str) -> str:
        """For another process; on a local disk the path."""
        return self.full_path(path) if self.local else f"{self._location}/{path}"

    def create(self, path: str) -> None:
        """Create a folder and those above it; one that exists is left as it is."""
        self._files.create_dir(self.full_path(path), recursive=True)

    def delete(self, path: str) -> None:
        """Delete a folder with all that is in it. Raises FileNotFoundError, OSError."""
        self._files.delete_dir(self.full_path(path))

    def delete_file(self, path: str) -> None:
        """Delete one file. Raises FileNotFoundError, OSError."""
        self._files.delete_file(self.full_path(path))

    def names(self, path: str) -> list[str]:
        """Names of the files and folders directly in a folder, sorted; none if it is not there."""
        from pyarrow import fs

        selector = fs.FileSelector(self.full_path(path), allow_not_found=True)
        return sorted(info.base_name for info in self._files.get_file_info(selector))

    def files_below(self, path: str) -> dict[str, float]:
        """Full path -> time of last change (s since 1970) of all files in a folder and below."""
        from pyarrow import fs

        selector = fs.FileSelector(self.full_path(path), allow_not_found=True, recursive=True)
        return {
            info.path: info.mtime_ns / 1e9
            for info in self._files.get_file_info(selector)
            if info.type == fs.FileType.File
        }

    def open_output(self, path: str) -> pa.NativeFile:
        """A stream that creates or truncates a file. On a local disk the folder must exist."""
        return self._files.open_output_stream(self.full_path(path))

    def read(self, path: str) -> bytes:
        """The content of a small file. Raises FileNotFoundError, OSError."""
        with self._files.open_input_stream(self.full_path(path)) as file:
            return bytes(file.read())

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        from pyarrow import fs

        kind = self._files.get_file_info(self.full_path(path)).type
        return bool(kind != fs.FileType.NotFound)

    def write(self, path: str, data: bytes) -> None:
        """Write a small file; on a local disk it appears whole or not at all."""
        if not self.local:
            with self.open_output(path) as file:
                file.write(data)
            return
        # fsync before the rename: otherwise a crash could leave the new name on an empty file.
        staged = f"{self.full_path(path)}.{os.getpid()}.tmp"
        with open(staged, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, self.full_path(path))

    def create_exclusively(self, path: str, data: bytes) -> None:
        """Create a small file that appears whole, on disk; FileExistsError if it is there already.

        The atomic step is a hard link on a local disk, and a conditional put in an object store
        (S3: `If-None-Match`, RFC 9110, 13.1.2).
        """
        if not self.local:
            create_object(self._location, self._storage, path, data)
            return
        staged = f"{self.full_path(path)}.{os.getpid()}.tmp"
        with open(staged, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            # Unlike a rename, a link fails if the name exists, and the file behind it is whole.
            os.link(staged, self.full_path(path))
        finally:
            os.unlink(staged)
        # The new name itself must be on disk before the commit counts.
        self.sync("", posixpath.dirname(path))

    def sync(self, *paths: str) -> None:
        """Make files and folders durable; object stores do that by themselves."""
        if not self.local:
            return
        for path in paths:
            handle = os.open(self.full_path(path), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def path_of(uri: str) -> str:
    """The path of a URI as its pyarrow file system has it; a plain path stays."""
    import pyarrow as pa
    from pyarrow import fs

    if is_s3(uri) or is_azure(uri):  # pyarrow would ask the bucket for its region
        return path_in_bucket(uri)
    try:
        return str(fs.FileSystem.from_uri(uri)[1])
    except (pa.ArrowInvalid, ValueError):
        return uri


def export_folder(key: ExportKey) -> str:
    """The folder of one export of one topic, relative to the table's location."""
    return f"{PREFIX}{key.export_id}/{key.topic}"


def new_token() -> int:
    """A random number: 60 bits, since Delta stores integers only; never 0."""
    # 0 stands for a version without tokens.
    return secrets.randbits(60) or 1


def attempt_folder(key: ExportKey, epoch: int, attempt: int) -> str:
    """Another name with each call."""
    return f"{export_folder(key)}/{epoch}-{attempt}-{new_token():015x}"


def delete_orphans(folder: Folder, key: ExportKey, epoch: int, committed_attempt: int) -> list[str]:
    """Delete the folders of attempts that never came into the table; returns their names.

    `epoch` is this process's; that it was taken makes all earlier ones fail. `committed_attempt` is
    of the state that the commit of the epoch followed.
    """
    deleted = []
    for name in folder.names(export_folder(key)):
        numbers = _numbers(name)
        if numbers is None or name.endswith(_STRAYS):
            continue
        # An older epoch can't commit any more, and attempt numbers only grow: neither this folder's
        # commit is in the table, nor can it come.
        if numbers[0] < epoch and numbers[1] > committed_attempt:
            with contextlib.suppress(FileNotFoundError):  # another process that starts was quicker
                folder.delete(f"{export_folder(key)}/{name}")
                deleted.append(name)
    return deleted


def note_strays(folder: Folder, attempt: str, kept: Collection[str]) -> None:
    """Note the files in a committed attempt's folder that the commit does not hold. No other commit
    can hold them: the folder is that attempt's alone."""
    strays = [name for name in folder.names(attempt) if f"{attempt}/{name}" not in kept]
    if strays:
        folder.write(attempt + _STRAYS, json.dumps(strays).encode())


def delete_strays(
    folder: Folder, key: ExportKey, epoch: int, named: Callable[[], Collection[str]]
) -> None:
    """Delete the strays that were noted in earlier epochs than this process's, as far as they are
    old. `named`: full paths of the files that the table names, looked up only if there are any."""
    for name in folder.names(export_folder(key)):
        numbers = _numbers(name)
        if numbers is None or numbers[0] >= epoch or not name.endswith(_STRAYS):
            continue
        with contextlib.suppress(FileNotFoundError):  # another process that starts was quicker
            _delete_noted(folder, f"{export_folder(key)}/{name}", named)


def _delete_noted(folder: Folder, note: str, named: Callable[[], Collection[str]]) -> None:
    attempt = note.removesuffix(_STRAYS)
    there = folder.files_below(attempt)
    paths = {f"{attempt}/{each}" for each in json.loads(folder.read(note))}
    strays = {path for path in paths if folder.full_path(path) in there}
    before_s = time.time_ns() / 1e9 - STRAY_AGE_MIN_S
    # A task that lost may still be writing: wait until none of its files has changed for an hour.
    if any(there[folder.full_path(path)] > before_s for path in strays):
        return
    kept = named() if strays else ()
    for path in strays:
        if folder.full_path(path) not in kept:
            folder.delete_file(path)
    # The note goes last: after a crash the next process deletes what is left.
    folder.delete_file(note)


def _numbers(name: str) -> tuple[int, int] | None:
    """Epoch and attempt of an attempt's folder, also of a version without tokens."""
    epoch, _, rest = name.partition("-")
    attempt = rest.removesuffix(_STRAYS).partition("-")[0]
    return (int(epoch), int(attempt)) if epoch.isdecimal() and attempt.isdecimal() else None
