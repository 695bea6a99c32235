"""Serves the dashboard until a signal, or until its parent ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable
from typing import Final

import uvicorn

from lakemq.broker_core.api.errors import StartupError
from lakemq.broker_core.api.hosts import join_host
from lakemq.broker_core.api.limits.connection_limits import ConnectionLimiter
from lakemq.broker_core.api.tls_files.server_context import watched_context
from lakemq.plugins.admin.accepting import KEEP_ALIVE_S, Admission, limits_of
from lakemq.plugins.admin.dashboard.application import application
from lakemq.plugins.admin.dashboard.options import DashboardOptions
from lakemq.plugins.admin.dashboard.serving.connections import Deadlines, protocol_of
from lakemq.plugins.admin.dashboard.serving.forwarded import Forwarded
from lakemq.plugins.admin.proxies import Proxies

_STOPPING_S: Final = 2
_HEAD_MAX_BYTES: Final = 32 * 1024
"""Of a request's first line and headers: a cursor, and texts that are percent-encoded."""


def serve(
    options: DashboardOptions, version: str, told: Callable[[str], None], *, with_parent: bool
) -> None:
    """`told`: is given the address when browsers may come. `with_parent`: end when standard input
    does, which the process that started this one holds open. Raises StartupError: the port is
    taken; ConfigError."""
    options.check()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C: uvicorn has stopped in order by then.
        asyncio.run(_serve(options, version, told, with_parent))


async def _serve(
    options: DashboardOptions, version: str, told: Callable[[str], None], with_parent: bool
) -> None:
    files = None
    if options.tls_cert:
        files = watched_context("dashboard", options.tls_cert, options.tls_key)
    proxies = Proxies("dashboard", options.proxies)
    limiter = ConnectionLimiter(limits_of(options.connections_max))
    admission = Admission(limiter, options.unauthenticated_timeout_ms / 1000, files, proxies)
    listening = _listen(options)
    config = uvicorn.Config(
        Deadlines(Forwarded(application(options, version), proxies)),
        http=protocol_of(admission),  # which has TLS, too: handshakes count
        h11_max_incomplete_event_size=_HEAD_MAX_BYTES,
        timeout_keep_alive=int(KEEP_ALIVE_S),
        log_level="error",  # what is worse than a request that is none
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=_STOPPING_S,
    )
    server = uvicorn.Server(config)
    host, port = listening.getsockname()[:2]
    told(f"{options.scheme}://{join_host(host, port)}")
    if not with_parent:
        await server.serve([listening])
        return
    parent = asyncio.create_task(_parent_ended(server))
    try:
        await server.serve([listening])
    finally:
        parent.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await parent


def _listen(options: DashboardOptions) -> socket.socket:
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, number)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(address)
            made.listen(128)
        except OSError:
            made.close()
            raise
    except OSError as error:
        raise StartupError(
            f"dashboard: cannot listen on {options.host}:{options.port}: {error.strerror}"
        ) from None
    return made


async def _parent_ended(server: uvicorn.Server) -> None:
    """Ends the server when nothing more can come from standard input."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    fd = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(fd, 4096):
            loop.remove_reader(fd)
            ended.set()

    loop.add_reader(fd, readable)
    await ended.wait()
    server.should_exit = True
