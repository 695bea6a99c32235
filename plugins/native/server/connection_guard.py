"""Ends connections of the gRPC listener that are too many, or do not authenticate in time."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from lakemq.broker_core.api.limits.connection_limits import (
    AdmittedConnection,
    ConnectionLimiter,
    ConnectionLimits,
    ConnectionRefused,
)
from lakemq.plugins.native.server.tcp_sockets import (
    OwnConnections,
    TcpConnection,
    connections_of,
    shut_down,
)

_log: Final = logging.getLogger(__name__)
_PAUSE_S: Final = 0.25
_HURRY_S: Final = 0.005
UNAUTHENTICATED_MAX_BYTES: Final = 256 * 1024
"""Of one connection: some calls' headers, and what flow control lets in behind them."""
REFUSALS_MAX: Final = 16
"""Calls that a connection may try in vain before it has authenticated."""


def limits_of(connections_max: int) -> ConnectionLimits:
    """One peer has half of the connections; those that have not authenticated have a quarter, of
    which one peer has a quarter."""
    quarter = max(1, connections_max // 4)
    return ConnectionLimits(
        connections_max, max(1, connections_max // 2), quarter, max(1, quarter // 4)
    )


@dataclass(slots=True)
class _Known:
    admitted: AdmittedConnection
    since_s: float


class Reconciler:
    """Which of the connections that are there are to be ended. Pure but for what it remembers."""

    def __init__(self, limits: ConnectionLimits, timeout_s: float) -> None:
        self.limiter = ConnectionLimiter(limits)
        self._timeout_s = timeout_s
        self._known: dict[int, _Known] = {}
        self._authenticated: dict[tuple[str, int], int] = {}
        """Peers of connections on which a call was let in -> how often we had looked by then."""
        self._refusals: Counter[tuple[str, int]] = Counter()
        self._looks = 0
        self.ended = 0

    def authenticated(self, host: str, port: int) -> None:
        """A call from there was let in."""
        self._authenticated[host, port] = self._looks

    def refused(self, host: str, port: int) -> bool:
        """A call from there was not let in; whether it is one too many."""
        self._refusals[host, port] += 1
        return self._refusals[host, port] > REFUSALS_MAX

    def look(self, seen: Iterable[TcpConnection], now_s: float) -> list[int]:
        """Inodes of connections to end, of all that are there now."""
        self._looks += 1
        there = {each.inode: each for each in seen}
        for inode in self._known.keys() - there.keys():
            self._known.pop(inode).admitted.close()
        wrong = [each.inode for each in there.values() if not self._is_right(each, now_s)]
        self._forget({(each.host, each.port) for each in there.values()})
        self.ended += len(wrong)
        return wrong

    def _forget(self, there: set[tuple[str, int]]) -> None:
        """Those that are gone; not those that came while we looked."""
        # A copy, made in one step: the event loop adds to it while this thread looks.
        for peer, looks in list(self._authenticated.items()):
            # A connection may be let in after the system listed them: it is not forgotten before a
            # look that began later has missed it.
            if peer not in there and looks < self._looks - 1:
                del self._authenticated[peer]
        for peer in list(self._refusals):
            if peer not in there:
                del self._refusals[peer]

    def _is_right(self, seen: TcpConnection, now_s: float) -> bool:
        known = seen.inode in self._known or self._admit(seen, now_s)
        return known and not self._is_late(seen, now_s)

    def _admit(self, seen: TcpConnection, now_s: float) -> bool:
        try:
            admitted = self.limiter.admit(seen.host)
        except ConnectionRefused:
            return False
        self._known[seen.inode] = _Known(admitted, now_s)
        return True

    def _is_late(self, seen: TcpConnection, now_s: float) -> bool:
        known = self._known[seen.inode]
        if known.admitted.authenticated:
            return False
        if (seen.host, seen.port) in self._authenticated:
            # From here on it no longer counts among those that have not authenticated.
            known.admitted.authenticate()
            return False
        return (
            now_s - known.since_s > self._timeout_s
            or self._refusals.get((seen.host, seen.port), 0) > REFUSALS_MAX
            or seen.bytes_received > UNAUTHENTICATED_MAX_BYTES
        )


class ConnectionGuard:
    """Looks at the connections of ports four times a second, and more often in a hurry. In a
    thread of its own: a busy event loop must not give time to the client that keeps it busy."""

    def __init__(self, limits: ConnectionLimits, timeout_s: float) -> None:
        self.reconciler = Reconciler(limits, timeout_s)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._hurried = threading.Event()
        self._hurries = 0

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """While an unauthenticated client is read from: it may send much in little time."""
        # Calls overlap: the hurry ends with the last of them.
        self._hurries += 1
        self._hurried.set()
        try:
            yield
        finally:
            self._hurries -= 1
            if not self._hurries:
                self._hurried.clear()

    def refused(self, host: str, port: int) -> None:
        """A call was not let in. Too many of a connection end it at once."""
        if self.reconciler.refused(host, port):
            self._hurried.set()

    def start(self, ports: Sequence[int]) -> None:
        """Watch the connections of ports. With several, other processes have some of them."""
        self._thread = threading.Thread(
            target=self._run, args=(ports,), name="native-connections", daemon=True
        )
        self._thread.start()

    async def stop(self) -> None:
        """End watching."""
        self._stopping.set()
        # Wakes the thread from its pause, so that it ends at once.
        self._hurried.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _run(self, ports: Sequence[int]) -> None:
        own = OwnConnections()
        while not self._stopping.is_set():
            try:
                seen = [each for port in ports for each in connections_of(port)]
            except OSError as error:
                _log.warning(
                    "connections of port %s are not told by the system (%s): one address may take "
                    "all of them",
                    " and ".join(map(str, ports)),
                    error.strerror,
                )
                return
            if len(ports) > 1:
                seen = own.of(seen)
            # Shut down rather than closed: the descriptor is gRPC's, which sees the end and cleans
            # up.
            shut_down(self.reconciler.look(seen, time.monotonic()))
            if not self._hurries:
                self._hurried.clear()
            self._pause(time.monotonic() + _PAUSE_S)

    def _pause(self, end_s: float) -> None:
        """Until then, or until a hurry lasts."""
        while (left_s := end_s - time.monotonic()) > 0 and not self._stopping.is_set():
            if self._hurried.wait(left_s):
                self._stopping.wait(_HURRY_S)
                if self._hurried.is_set():  # a client that logs in is done by then
                    return
