"""A LakeMQ node as a process of its own, started and stopped like any user would."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

LAKEMQ: Final = str(Path(sys.executable).with_name("lakemq"))
"""The `lakemq` command of the environment that runs this program."""
_START_MAX_S: Final = 30.0
_STOP_MAX_S: Final = 30.0


class NodeFailed(Exception):
    """The node did not start, or did not stop; says what it wrote."""


class Node:
    """`lakemq start`, in a process. What it says on standard error goes to the file `log`."""

    def __init__(
        self, config: Path, data_dir: Path, log: Path, command: Sequence[str] = (LAKEMQ,)
    ) -> None:
        self.command = [*command, "start", "--config", str(config), "--data-dir", str(data_dir)]
        self.addresses: dict[str, str] = {}
        """Listener -> `host:port`, as the node printed them."""
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Returns when the node is ready. NodeFailed, with the end of its log, if it is not."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        patience = threading.Timer(_START_MAX_S, self._process.kill)
        patience.start()
        try:
            for line in self._process.stdout:  # ends when the node does
                name, _, address = line.strip().partition(" ")
                if name == "ready":
                    return
                self.addresses[name] = address
        finally:
            patience.cancel()
        self.kill()
        raise NodeFailed(f"the node did not start:\n{self._last_words()}")

    def stop(self) -> None:
        """SIGTERM: the node says goodbye to its clients, flushes and closes."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(_STOP_MAX_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NodeFailed(f"the node did not stop in {_STOP_MAX_S:.0f} s") from None
        self._forget()
        if status != 0:
            raise NodeFailed(f"the node stopped with status {status}:\n{self._last_words()}")

    def kill(self) -> None:
        """SIGKILL: the process is gone at once, whatever it was doing."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._forget()

    def _forget(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        self.addresses = {}

    def _last_words(self) -> str:
        return "\n".join(self._log.read_text().splitlines()[-5:])
