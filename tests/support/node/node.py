"""A real node in a process of its own, on free ports, that tests start, stop and kill."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.node.ports import free_port

PORTS_FREE = """
[meta]
port = 0
raft_port = 0
[cluster]
peer_port = 0
[admin]
port = 0
[plugins.mqtt]
port = 0
[plugins.native]
port = 0
"""
"""Every listener on a port that the system chooses."""


PEER_PORT_FREE = {"LAKEMQ_CLUSTER__PEER_PORT": "0"}
"""Also for a test that writes a configuration of its own: nodes find this port in the catalog."""
_numbers = itertools.count()


def unique(name: str) -> str:
    """A name that no other test of this process has, for a topic of a shared node."""
    return f"{name}-{next(_numbers)}"


def ports_kept(*plugins: str, **settings: int) -> str:
    """The same, but clients of these plugins find a node that was started again where it was.
    `settings`: of each of these plugins."""
    config = PORTS_FREE
    for name in plugins:
        section = f"[plugins.{name}]\nport = "
        more = "".join(f"\n{key} = {value}" for key, value in settings.items())
        config = config.replace(section + "0", f"{section}{free_port()}{more}")
    return config


class NodeProcess:
    """`lakemq start` on a data folder. `addresses` holds listener name -> host:port when ready.

    `config`: TOML in place of `PORTS_FREE`. `environment`: variables on top of ours. `python`,
    `cwd`: another installation, run from elsewhere. `arguments`: more of `lakemq start`.
    """

    def __init__(
        self,
        folder: Path,
        config: str = PORTS_FREE,
        environment: dict[str, str] | None = None,
        *,
        python: str = sys.executable,
        cwd: Path | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.config_file = folder / "lakemq.toml"
        self.log_file = folder / "node.log"
        self.addresses: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None
        self._environment = environment or {}
        self._python = python
        self._cwd = cwd
        self._arguments = arguments
        folder.mkdir(parents=True, exist_ok=True)
        self.config_file.write_text(config)

    @property
    def native(self) -> str:
        return self.addresses["native"]

    @property
    def mqtt_port(self) -> int:
        return int(self.addresses["mqtt"].rpartition(":")[2])

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, timeout_s: float = 90.0) -> Self:
        """Raises AssertionError with the node's own words when it does not get ready."""
        with self.log_file.open("a") as log:
            self.process = subprocess.Popen(
                [self._python, "-m", "lakemq", "start", "--config", str(self.config_file),
                 "--data-dir", str(self.data_dir), *self._arguments],
                stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, **PEER_PORT_FREE, **self._environment}, cwd=self._cwd,
            )  # fmt: skip
        lines = _lines_of(self.process)
        deadline = time.monotonic() + timeout_s
        while (line := _next_line(lines, deadline)) != "ready":
            if line is None:
                self.kill()
                raise AssertionError(f"node did not get ready:\n{self.log_file.read_text()}")
            name, _, address = line.partition(" ")
            self.addresses[name] = address
        return self

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM; the exit code."""
        return self._end(signal.SIGTERM, timeout_s)

    def _end(self, number: signal.Signals, timeout_s: float = 60.0) -> int:
        process = self.process
        if process is None:
            return 0
        self.process = None
        if process.poll() is None:
            process.send_signal(number)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"node did not stop in {timeout_s} s:\n{self.log_file.read_text()}"
            ) from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill() if error is not None else self.stop()


def _lines_of(process: subprocess.Popen[str]) -> queue.Queue[str | None]:
    """Standard output line by line; None at its end."""
    lines: queue.Queue[str | None] = queue.Queue()
    out = process.stdout
    assert out is not None

    def read() -> None:
        try:
            for line in out:
                lines.put(line.strip())
        except ValueError:  # closed by `_end`
            pass
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _next_line(lines: queue.Queue[str | None], deadline: float) -> str | None:
    try:
        return lines.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        return None
