"""The dashboard as a process beside its node: started with it, started again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from typing import Final

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.api.hosts import join_host
from lakemq.plugins.admin.config import AdminSettings
from lakemq.plugins.admin.dashboard.options import SECRET

_log = logging.getLogger(__name__)
_NEEDS: Final = ("jinja2", "starlette", "uvicorn")
_PAUSE_S: Final = 1.0
_PAUSE_MAX_S: Final = 60.0
_STOPPING_S: Final = 5.0
_EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def arguments_of(settings: AdminSettings, address: str) -> list[str]:
    """Of `lakemq dashboard`, for a node whose admin API listens on `address` (`host:port`)."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    scheme = "https" if settings.tls_cert else "http"
    near = join_host(_EVERY_ADDRESS.get(host, host), int(port))
    words = ["--admin", settings.dashboard_api or f"{scheme}://{near}"]
    words += ["--host", settings.dashboard_host or host, "--port", str(settings.dashboard_port)]
    if settings.tls_cert:
        words += ["--serve-cert", settings.tls_cert, "--serve-key", settings.tls_key]
    if settings.dashboard_ca:
        words += ["--tls-ca", settings.dashboard_ca]
    if settings.insecure:
        words.append("--insecure")
    for name in settings.hosts:
        words += ["--allowed-host", name]
    for name in settings.proxies:
        words += ["--proxy", name]
    words += ["--connections-max", str(settings.connections_max)]
    words += ["--login-timeout-ms", str(settings.unauthenticated_timeout_ms)]
    return words


def check_installed() -> None:
    """Raises ConfigError: the packages of the extra are missing."""
    if missing := [name for name in _NEEDS if importlib.util.find_spec(name) is None]:
        raise ConfigError(
            f"admin: dashboard = true needs {', '.join(missing)}: pip install 'lakemq[dashboard]'"
        )


_COMMAND: Final = (sys.executable, "-P", "-m", "lakemq", "dashboard", "--with-parent")


class DashboardChild:
    """One process. It ends with this one, also when this one is killed: its standard input does."""

    def __init__(self, arguments: Sequence[str], known_by: str) -> None:
        """`arguments`: of `lakemq dashboard`. `known_by`: a secret that it shows this node."""
        self._known_by = known_by
        self._arguments = [*arguments]
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start it, and again whenever it ends."""
        self._keeping = asyncio.create_task(self._keep())

    def use(self, arguments: Sequence[str]) -> None:
        """Start it again with these, unless it has them; who uses it has to log in again."""
        if [*arguments] == self._arguments:
            return
        self._arguments = [*arguments]
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def stop(self) -> None:
        """End it."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(_STOPPING_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _keep(self) -> None:
        pause_s = _PAUSE_S
        while True:
            began_s = asyncio.get_running_loop().time()
            code = await self._run()
            if asyncio.get_running_loop().time() - began_s > _PAUSE_MAX_S:
                pause_s = _PAUSE_S
            _log.warning("the dashboard ended with code %s; again in %.0f s", code, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _run(self) -> int:
        # Without our settings: what it needs are its arguments, and no other secret of the node.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LAKEMQ_")}
        environment[f"LAKEMQ_{SECRET}"] = self._known_by
        process = self._process = await asyncio.create_subprocess_exec(
            *_COMMAND, *self._arguments, env=environment, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        async for line in process.stdout:
            _log.info("%s", line.decode(errors="replace").strip())
        return await process.wait()
