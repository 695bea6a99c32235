"""Which process runs an export: a record with a heartbeat, in the export's folder.

It only refuses a second process while the first one runs, for convenience. That two processes never
commit both is ensured by the epochs in the table.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from typing import Any, Final

from lakemq.spark_plugin.errors import ExportRunning
from lakemq.spark_plugin.export.tables.files import Folder, export_folder
from lakemq.spark_plugin.export.tables.table import ExportKey

BEAT_S: Final = 5.0
SILENCE_MAX_S: Final = 30.0
"""An owner whose heartbeat is older is considered dead."""


class Owner:
    """This process as the runner of one export."""

    def __init__(self, folder: Folder, key: ExportKey) -> None:
        self._folder = folder
        self._key = key
        self._path = f"{export_folder(key)}/owner.json"
        self._run = uuid.uuid4().hex
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def check_free(self) -> None:
        """ExportRunning if another process seems to run the export."""
        other = self._read()
        if other is None or other.get("run") == self._run:
            return
        silent_s = max(0.0, time.time_ns() / 1e9 - float(other.get("beat_s", 0)))
        # Compared by wall clocks of two machines, which may be wrong: that is harmless, since the
        # epoch in the table decides who commits.
        if silent_s > SILENCE_MAX_S or _is_dead_here(other):
            return
        raise ExportRunning(
            f"export {self._key.export_id} of topic {self._key.topic} is run by process "
            f"{other.get('pid')} on {other.get('host')} (last sign of life {silent_s:.0f} s ago); "
            "pass --take-over to stop it from committing, or another --export-id for a second copy"
        )

    def take(self) -> None:
        """Say from now on that this process runs the export."""
        self._folder.create(export_folder(self._key))
        self._beat()
        self._thread = threading.Thread(target=self._beat_on, name="export owner", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Say that it does no longer."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        other = self._read()
        # Another process may have taken over: its record must stay.
        if other is not None and other.get("run") == self._run:
            with contextlib.suppress(OSError):
                self._folder.delete_file(self._path)

    def _beat_on(self) -> None:
        while not self._ended.wait(BEAT_S):
            other = self._read()
            if other is not None and other.get("run") != self._run:
                return  # taken over: the next commit will say so
            with contextlib.suppress(OSError):
                self._beat()

    def _beat(self) -> None:
        record = {
            "run": self._run,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "beat_s": time.time_ns() / 1e9,
        }
        self._folder.write(self._path, json.dumps(record).encode())

    def _read(self) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self._folder.read(self._path)))
        except (OSError, ValueError, TypeError):
            return None


def _is_dead_here(other: dict[str, Any]) -> bool:
    """Whether the owner was a process of this machine that has ended."""
    if other.get("host") != socket.gethostname() or not isinstance(other.get("pid"), int):
        return False
    try:
        # Signal 0 sends nothing and only checks that the process exists.
        os.kill(other["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
