"""Starts the processes of a node, starts again those that die, stops them all. Edge."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.command_line import say
from lakemq.broker_core.api.errors import StartupError
from lakemq.broker_core.configuration.config import Config
from lakemq.meta_service.api.types import process_id
from lakemq.processes.plan import variables
from lakemq.service_manager import READY, STOPPING, notify

_log: Final = logging.getLogger(__name__)
_rng: Final = random.Random()
_READY: Final = b"ready"
_LINE_MAX_BYTES: Final = 64 * 1024
_STOP_MAX_S: Final = 60.0
"""How long a process may take to stop in good order."""
_AGAIN_FIRST_MS: Final = 200
_AGAIN_MAX_MS: Final = 30_000
_LASTING_S: Final = 60.0
"""A process that has lived for so long is started again at once when it dies."""


class _Child:
    """One process, and those that come after it under the same number."""

    def __init__(
        self, config: Config, number: int, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.name = process_id(config.node.id, number)
        self.addresses: dict[str, str] = {}
        self.ready = asyncio.Event()
        self.stopping = asyncio.Event()
        self._command = command
        self._environment = {**environment, **dict(variables(config, number))}
        self._process: Process | None = None

    async def run(self) -> None:
        """Until it is stopped. Raises StartupError where it ends before it was ever ready."""
        backoff = Backoff(_AGAIN_FIRST_MS, _AGAIN_MAX_MS, _rng.random)
        loop = asyncio.get_running_loop()
        while not self.stopping.is_set():
            started_s = loop.time()
            code = await self._run_once()
            if self.stopping.is_set():
                return
            if not self.ready.is_set():
                raise StartupError(f"process {self.name} did not start; it ended with code {code}")
            if loop.time() - started_s > _LASTING_S:
                backoff.reset()
            pause_s = backoff.next_s()
            text = "process %s ended with code %s; it is started again in %.1f s"
            _log.error(text, self.name, code, pause_s)
            await asyncio.sleep(pause_s)

    async def _run_once(self) -> int:
        # Its standard input is a pipe that ends with this process, however this one dies.
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, env=self._environment, limit=_LINE_MAX_BYTES
        )
        if self.stopping.is_set():  # while it was being made
            process.terminate()
        assert process.stdout is not None
        async for line in process.stdout:
            if line.strip() == _READY:
                self.ready.set()
            elif not self.ready.is_set():
                name, _, address = line.decode(errors="replace").strip().partition(" ")
                self.addresses[name] = address
        return await process.wait()

    def signal(self, number: int) -> None:
        """Send a signal, if there is a process."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


class Supervisor:
    """All processes of a node."""

    def __init__(
        self, config: Config, count: int, file: Path | None, environment: Mapping[str, str]
    ) -> None:
        """`file` and `environment`: what `config` was read from."""
        self._config = config
        command = [sys.executable, "-m", "lakemq", "start"]
        if file is not None:
            command += ["--config", str(file)]
        # It is this process that tells the service manager.
        shared = {name: text for name, text in environment.items() if name != "NOTIFY_SOCKET"}
        shared["LAKEMQ_NODE__PROCESSES"] = str(count)
        numbers = range(1, count + 1)
        self._children = [_Child(config, number, command, shared) for number in numbers]
        self._tasks: dict[_Child, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until SIGINT or SIGTERM. Raises StartupError where a process can't be started."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._signal, signal.SIGHUP)
        stopped = loop.create_task(stop.wait())
        try:
            first, *others = self._children
            # The others ask it for the catalog.
            await self._start([first], stopped)
            await self._start(others, stopped)
            if not stop.is_set():
                addresses = first.addresses
                lines = [f"{name} {address}" for name, address in addresses.items()]
                say("\n".join([*lines, "ready"]), ready=True, addresses=addresses)
                sys.stdout.flush()
                notify(READY)
            await stopped
        finally:
            stopped.cancel()
            notify(STOPPING)
            await self._stop()

    async def _start(self, children: Sequence[_Child], stopped: asyncio.Task[bool]) -> None:
        """Returns when they serve, or when it is all over."""
        loop = asyncio.get_running_loop()
        self._tasks |= {child: loop.create_task(child.run()) for child in children}
        ready = loop.create_task(_all_ready(children))
        running = list(self._tasks.values())
        try:
            await asyncio.wait([stopped, ready, *running], return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                if task.done():
                    task.result()  # StartupError
        finally:
            ready.cancel()

    def _signal(self, number: int) -> None:
        for child in self._children:
            child.signal(number)

    async def _stop(self) -> None:
        """The first one last: the others tell its MetaService that they leave."""
        first, *others = self._children
        for children in (others, [first]):
            for child in children:
                child.stopping.set()
                child.signal(signal.SIGTERM)
            tasks = [self._tasks[child] for child in children if child in self._tasks]
            if not tasks:
                continue
            _, late = await asyncio.wait(tasks, timeout=_STOP_MAX_S)
            for child in children:
                if self._tasks.get(child) in late:
                    _log.error("process %s did not stop in %.0f s", child.name, _STOP_MAX_S)
                    child.signal(signal.SIGKILL)
            await asyncio.gather(*tasks, return_exceptions=True)


async def _all_ready(children: Iterable[_Child]) -> None:
    for child in children:
        await child.ready.wait()
