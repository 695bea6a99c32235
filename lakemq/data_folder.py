"""The node's data folder: made, locked, and checked to belong to this node."""

from __future__ import annotations

import fcntl
import json
import os
import re
import uuid
from pathlib import Path
from typing import Final

from lakemq.broker_core.api.errors import StartupError
from lakemq.meta_service.api.durable_files import sync_all

FORMAT: Final = 1
_LOCK: Final = "lock"
_IDENTITY: Final = "node.json"
_STORAGE: Final = "storage.json"


class DataFolder:
    """Holds the lock while open. Layout: docs/formats/data-folder.md."""

    def __init__(self, path: Path, node_id: str) -> None:
        self.path = path
        self._node_id = node_id
        self._lock: int | None = None

    def open(self) -> None:
        """Raises StartupError: not writable, locked by another process, or another node's."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o750)
            # Opened without O_TRUNC: the number of the process that holds the lock is read from it
            # below.
            descriptor = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StartupError(f"data folder {self.path}: {error.strerror}") from None
        try:
            # The kernel releases it when the process dies, however it dies: no stale lock keeps a
            # node from starting.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "?"
            os.close(descriptor)
            raise StartupError(f"data folder {self.path} is in use by process {holder}") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock = descriptor
        try:
            self._check_identity()
        except StartupError:
            self.close()
            raise

    def _check_identity(self) -> None:
        file = self.path / _IDENTITY
        # Written durably before any data: a folder with data and without identity can't come from a
        # crash.
        if not file.exists():
            _write_durably(file, json.dumps({"format": FORMAT, "node_id": self._node_id}) + "\n")
            return
        try:
            identity = json.loads(file.read_text())
            written_format, owner = identity["format"], identity["node_id"]
        except (OSError, ValueError, KeyError, TypeError):
            raise StartupError(f"{file} is damaged: it must hold format and node_id") from None
        if written_format != FORMAT:
            raise StartupError(f"{file}: format {written_format}; this build writes {FORMAT}")
        if owner != self._node_id:
            raise StartupError(
                f"data folder {self.path} belongs to node {owner!r}, this is {self._node_id!r}"
            )

    def close(self) -> None:
        """Release the lock. The lock file stays: deleting it would let two processes lock different
        files."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def storage_id(folder: Path) -> str:
    """The name of what `folder` holds: 32 hex digits, drawn when there is none, then the same for
    as long as the content is there. An emptied disk thus has another one. Raises StartupError."""
    file = folder / _STORAGE
    try:
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)
            # The file is on disk before the id is told to the catalog, or a crash could leave data
            # under an id that is lost.
            drawn = uuid.uuid4().hex
            _write_durably(file, json.dumps({"format": FORMAT, "storage_id": drawn}) + "\n")
        stored = json.loads(file.read_text())
        written_format, found = stored["format"], stored["storage_id"]
    except OSError as error:
        raise StartupError(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise _damaged(file, "it must hold format and storage_id") from None
    if written_format != FORMAT:
        raise StartupError(f"{file}: format {written_format}; this build writes {FORMAT}")
    if not isinstance(found, str) or not re.fullmatch("[0-9a-f]{32}", found):
        raise _damaged(file, "storage_id must be 32 hex digits")
    return found


def _damaged(file: Path, why: str) -> StartupError:
    return StartupError(
        f"{file} is damaged: {why}. Without the file this counts as another disk: in a cluster, "
        "replicas are copied here again from other nodes"
    )


def _write_durably(file: Path, text: str) -> None:
    """New file, fsync, rename, directory fsync."""
    fresh = file.with_suffix(".new")
    with fresh.open("w") as out:
        out.write(text)
        out.flush()
        sync_all(out.fileno())
    # fsync before the rename, so that the name never leads to half a file; of the folder after it,
    # so that the name itself survives.
    fresh.rename(file)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        sync_all(directory)
    finally:
        os.close(directory)
