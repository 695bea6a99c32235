"""The other end of `version_worker`: a plugin's version in a process of its own, asked for what it
makes of records."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from lakemq.broker_core.api.errors import LakeMQError, PluginError
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.types import Columns
from lakemq.cli.plugins.outcomes import Outcome, outcomes_of
from lakemq.cli.plugins.version_worker import FRAME_MAX_BYTES, LENGTH, columns_of, frame

WITHIN_S: Final = 60.0
"""How long a version may take to be imported, or for one group of records."""
_READ_BYTES: Final = 1 << 16


class VersionProcess:
    """Open from `with` to its end. Raises PluginError whenever it can't go on."""

    def __init__(self, name: str, path: Path | None, config: Path | None) -> None:
        """`path`: where the version is; None: the one that is installed."""
        self.name = f"plugin {name} at {path}" if path is not None else f"installed plugin {name}"
        self.version = "?"
        self.file = ""
        self.seconds = 0.0
        """Spent in interceptors."""
        arguments = [name, str(path or ""), str(config or "")]
        # -P: a plugin in the working folder is not the one that is installed.
        self._command = [
            sys.executable,
            "-P",
            "-m",
            "lakemq.cli.plugins.version_worker",
            *arguments,
        ]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        return self

    def ready(self) -> None:
        """Wait until it is imported. Raises PluginError: it can't be."""
        said, _ = self._heard("its import")
        if "error" in said:
            raise PluginError(str(said["error"]))
        self.version, self.file = said["version"], said["file"]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def ask(self, topic: str, principal: str, columns: Columns) -> None:
        """Begin; `outcomes` waits. One group at a time."""
        assert self._process.stdin is not None
        sent = frame({"topic": topic, "principal": principal}, encode(columns))
        try:
            view = memoryview(sent)
            while view:
                view = view[self._process.stdin.write(view) :]
        except BrokenPipeError:
            pass  # `outcomes` tells why

    def outcomes(self, what: str) -> list[Outcome]:
        """What becomes of each record that `ask` was given. `what`: the records, for errors."""
        said, batch = self._heard(what)
        self.seconds += said["seconds"]
        try:
            stored = columns_of(batch) if batch else Columns([], [], [], [])
        except LakeMQError as error:
            raise PluginError(f"{self.name}: {what}: {error}") from None
        return outcomes_of(said["pieces"], stored)

    def _heard(self, what: str) -> tuple[dict[str, Any], bytes]:
        deadline = time.monotonic() + WITHIN_S
        (size,) = LENGTH.unpack(self._read(LENGTH.size, deadline, what))
        if size > FRAME_MAX_BYTES:
            raise PluginError(f"{self.name}: {what}: it answered {size} bytes")
        line, _, batch = self._read(size, deadline, what).partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found, batch

    def _read(self, count: int, deadline: float, what: str) -> bytes:
        assert self._process.stdout is not None
        number, found = self._process.stdout.fileno(), bytearray()
        while len(found) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([number], [], [], left)[0]:
                raise PluginError(f"{self.name}: {what}: no answer in {WITHIN_S:.0f} s")
            part = os.read(number, min(_READ_BYTES, count - len(found)))
            if not part:
                code = self._process.wait()
                raise PluginError(f"{self.name}: {what}: its process ended with exit code {code}")
            found += part
        return bytes(found)


class Recorded:
    """In place of a version: records as they are stored."""

    version = "as recorded"
    file = ""
    seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        """Nothing runs."""

    def ready(self) -> None:
        """See `VersionProcess`."""

    def ask(self, topic: str, principal: str, columns: Columns) -> None:
        """See `VersionProcess`."""
        self._stored = outcomes_of([(len(columns.values), "stored", "")], columns)

    def outcomes(self, what: str) -> list[Outcome]:
        """See `VersionProcess`."""
        return self._stored
