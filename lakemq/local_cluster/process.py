"""One node as a process of its own: started, killed, paused and stopped by its process id."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

START_MAX_S: Final = 90.0
STOP_MAX_S: Final = 60.0
_LOG_LINES: Final = 15


class NodeFailed(RuntimeError):
    """A node did not start or stop; the message ends with the last lines of its log."""


class NodeProcess:
    """`lakemq start` on a folder: `lakemq.toml`, `data` and `node.log` lie in it.

    `addresses` is listener name -> `host:port`, as the node printed them when it was ready.
    """

    def __init__(self, node_id: str, folder: Path, config: str) -> None:
        self.node_id = node_id
        self.folder = folder
        self.data_dir = folder / "data"
        self.log_file = folder / "node.log"
        self.addresses: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        config_file = folder / "lakemq.toml"
        config_file.write_text(config, encoding="utf-8")
        self.command = [
            sys.executable, "-m", "lakemq", "start",
            "--config", str(config_file), "--data-dir", str(self.data_dir),
        ]  # fmt: skip
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    @property
    def running(self) -> bool:
        """Whether the process is there; it may be paused, or not be ready yet."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """The process id. Raises NodeFailed where there is no process."""
        if self.process is None:
            raise NodeFailed(f"node {self.node_id} is not running")
        return self.process.pid

    def launch(self) -> None:
        """Start the process; `wait_ready` waits for it. Raises NodeFailed if it runs already."""
        if self.running:
            raise NodeFailed(f"node {self.node_id} runs already, as process {self.pid}")
        self._forget()
        with self.log_file.open("a") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                text=True,
            )  # fmt: skip
        self._lines = _lines_of(self.process)

    def wait_ready(self, timeout_s: float = START_MAX_S) -> None:
        """Returns when the node serves. Raises NodeFailed, with the process killed."""
        deadline = time.monotonic() + timeout_s
        addresses: dict[str, str] = {}
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                self.kill()
                raise NodeFailed(f"node {self.node_id} did not get ready:\n{self.last_words()}")
            if line == "ready":
                self.addresses = addresses
                return
            name, _, address = line.partition(" ")
            addresses[name] = address

    def kill(self) -> None:
        """SIGKILL, also to a paused process; returns when it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._forget()

    def terminate(self, timeout_s: float = STOP_MAX_S) -> int:
        """SIGTERM; the exit code. Raises NodeFailed, with the process killed, after `timeout_s`."""
        if self.process is None:
            raise NodeFailed(f"node {self.node_id} is not running")
        self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise NodeFailed(
                f"node {self.node_id} did not stop in {timeout_s:.0f} s:\n{self.last_words()}"
            ) from None
        finally:
            self._forget()

    def pause(self) -> None:
        """SIGSTOP: the process stands still, its sockets stay open."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def last_words(self) -> str:
        """The end of the node's log."""
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return "\n".join(text.splitlines()[-_LOG_LINES:])

    def _forget(self) -> None:
        process, self.process = self.process, None
        if process is not None and process.stdout is not None:
            process.stdout.close()


def _lines_of(process: subprocess.Popen[str]) -> queue.SimpleQueue[str | None]:
    """Standard output line by line; None at its end."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    out = process.stdout

    def read() -> None:
        try:
            for line in out or ():
                lines.put(line.strip())
        except ValueError:  # closed by `_forget`
            pass
        lines.put(None)

    threading.Thread(target=read, name=f"node-{process.pid}", daemon=True).start()
    return lines
