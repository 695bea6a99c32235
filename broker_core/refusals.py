"""Nodes at whose address no process listens: this node is a witness when a process has died.

Looked for when a stream from or to a node ends. Told with heartbeats, so that the controller need
not wait until those of the dead process are missed (`meta_service.control.dead_processes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

LOOK_S: Final = 2.5
"""How long a node is looked at after a stream has ended; by then its heartbeats are missed."""
ALIVE: Final = 3
"""So many connections in a row mean that the node lives: one may come from what is about to end."""
_PAUSE_S: Final = 0.1
_CONNECT_S: Final = 0.3


class Refusals:
    """Lives on the event loop."""

    def __init__(
        self, address_of: Callable[[str], str], broker_epochs: Callable[[], Mapping[str, int]]
    ) -> None:
        """`address_of`: node id -> `host:port` of its listener `peer`; empty if unknown.
        `broker_epochs()`: of registered nodes."""
        self.on_found: Callable[[], None] = lambda: None
        """Called when a node has begun to refuse."""
        self._address_of = address_of
        self._broker_epochs = broker_epochs
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._refusing: dict[str, int] = {}
        self._stopped = False

    def found(self) -> list[tuple[str, int]]:
        """(node id, broker epoch) of nodes that refuse connections now."""
        return list(self._refusing.items())

    def look_at(self, node: str) -> None:
        """A stream from or to the node has ended: find out whether its process is gone."""
        epoch = self._broker_epochs().get(node, 0)
        if epoch and node not in self._looking and not self._stopped:
            task = asyncio.get_running_loop().create_task(self._look(node, epoch))
            self._looking[node] = task
            task.add_done_callback(lambda _: self._looking.pop(node, None))

    async def _look(self, node: str, epoch: int) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LOOK_S
        alive = 0
        try:
            while loop.time() < until_s and alive < ALIVE:
                answer = await _connects(self._address_of(node))
                alive = alive + 1 if answer else 0
                if answer is not False:
                    self._refusing.pop(node, None)
                elif node not in self._refusing:
                    self._refusing[node] = epoch
                    self.on_found()
                await asyncio.sleep(_PAUSE_S)
        finally:
            self._refusing.pop(node, None)

    async def stop(self) -> None:
        """Look at nothing more."""
        self._stopped = True
        looking = list(self._looking.values())
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)


async def _connects(address: str) -> bool | None:
    """False: the host answers that no process listens at `host:port`. None: nothing is known."""
    host, _, port = address.rpartition(":")
    if not host:
        return None
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return False
    except OSError:  # cut off, or not to be found: TimeoutError is one too
        return None
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
