"""One poll of figures for all pages: what the dashboard costs the brokers does not depend on how
many browsers look."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

from lakemq.plugins.admin.dashboard.client import AdminClient, ApiProblem, within
from lakemq.plugins.admin.dashboard.metrics import PERIOD_S, History, totals
from lakemq.plugins.admin.dashboard.options import Credentials

_log = logging.getLogger(__name__)
STREAMS_MAX: Final = 200
_QUEUED_MAX: Final = 4
_BEAT_S: Final = 15.0
_NODE_S: Final = 4.0
_NODES_MAX: Final = 200


class Poller:
    """Keeps the last hour, and tells streams of each new sample."""

    def __init__(
        self, client: AdminClient, who: Callable[[], Credentials | None], scheme: str
    ) -> None:
        """`who`: as whom to ask; None: no one who may is logged in. `scheme`: of the admin API of
        all nodes."""
        self._client = client
        self._who = who
        self._scheme = scheme
        self._streams: set[asyncio.Queue[str]] = set()
        self._failed = ""
        self.history = History()

    async def run(self) -> None:
        """Until it is cancelled, on a fixed grid: samples that drift would make spikes."""
        while True:
            await asyncio.sleep(PERIOD_S - time.monotonic() % PERIOD_S)
            await self.poll()

    async def poll(self) -> None:
        """Ask all nodes once. Never raises ApiProblem: a plot has a gap then."""
        who = self._who()
        if who is None:
            return
        try:
            nodes = (await self._client.get(who, "nodes", {"limit": str(_NODES_MAX)}))["data"]
        except ApiProblem as problem:
            self._complain(str(problem))
            return
        texts = await asyncio.gather(
            *(self._metrics(who, each["addresses"].get("admin", "")) for each in nodes)
        )
        found = {
            node["node"]: totals(text) for node, text in zip(nodes, texts, strict=True) if text
        }
        if found:
            self._failed = ""
            sample = self.history.add(time.time_ns() / 1e9, found)
            self._tell(f"data: {json.dumps(sample)}\n\n")

    async def _metrics(self, who: Credentials, address: str) -> str:
        """Empty: this node does not tell."""
        if not address:
            return ""
        try:
            async with within(_NODE_S):
                return await self._client.metrics(who, f"{self._scheme}://{address}")
        except ApiProblem as problem:
            self._complain(str(problem))
            return ""

    def _complain(self, what: str) -> None:
        """Once for each reason."""
        if what != self._failed:
            self._failed = what
            _log.warning("no figures for plots: %s", what)

    def _tell(self, line: str) -> None:
        for queue in self._streams:
            if queue.full():
                queue.get_nowait()  # A browser that sleeps misses samples; memory stays bounded.
            queue.put_nowait(line)

    @property
    def has_room(self) -> bool:
        """For one more stream."""
        return len(self._streams) < STREAMS_MAX

    async def stream(self) -> AsyncIterator[str]:
        """Server-sent events: samples, and comments that keep proxies from closing."""
        queue: asyncio.Queue[str] = asyncio.Queue(_QUEUED_MAX)
        self._streams.add(queue)
        try:
            yield ": begins\n\n"
            while True:
                line = ": still here\n\n"
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_BEAT_S):
                        line = await queue.get()
                yield line
        finally:
            self._streams.discard(queue)
