"""A program that has a terminal, as when a person runs it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

LAKEMQ: Final = Path(sys.executable).with_name("lakemq")
"""The command as it is installed."""
_FORCING: Final = {"NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS"}
PLAIN: Final = {name: value for name, value in os.environ.items() if name not in _FORCING}
"""The environment without what says whether there are colours."""


class Terminal:
    """Its terminal has 200 columns and 40 lines."""

    def __init__(self, *words: str, environment: dict[str, str]) -> None:
        ours, theirs = pty.openpty()
        wanted = {**PLAIN, "COLUMNS": "200", "LINES": "40", "TERM": "xterm", **environment}
        self._process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, env=wanted, start_new_session=True
        )
        os.close(theirs)
        self._file = ours

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def read(self, until: str | None = None, within_s: float = 60.0) -> bytes:
        """What it prints up to and with `until`; without, up to its end."""
        found, deadline = b"", time.monotonic() + within_s
        while until is None or until.encode() not in found:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self._file], [], [], left)[0], found
            try:
                found += os.read(self._file, 4096)
            except OSError:  # Linux: its end
                assert until is None, found
                break
        return found

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, within_s: float = 30.0) -> int:
        """The exit code."""
        return self._process.wait(within_s)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._file)
