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

from lakemq.plugins.admin.dashboard.client import AdminClient, ApiProblem
from lakemq.plugins.admin.dashboard.metrics import PERIOD_S, WANTED, History
from lakemq.plugins.admin.dashboard.options import Credentials

_log = logging.getLogger(__name__)
STREAMS_OF_ONE_MAX: Final = 20
"""Of one user, and of all who need no login."""
_QUEUED_MAX: Final = 4
_BEAT_S: Final = 15.0
_NODES_MAX: Final = 500


class Poller:
    """Keeps the last hour, and tells streams of each new sample."""

    def __init__(
        self, client: AdminClient, who: Callable[[], Credentials | None], streams_max: int
    ) -> None:
        """`who`: as whom to ask; None: no one who may is logged in. `streams_max`: of all users."""
        self._client = client
        self._who = who
        self._streams_max = streams_max
        self._streams: dict[asyncio.Queue[str], str] = {}
        self.failed = ""
        """What is missing of the last sample, and why; empty: nothing."""
        self.history = History()

    async def run(self) -> None:
        """Until it is cancelled, on a fixed grid: samples that drift would make spikes."""
        while True:
            await asyncio.sleep(PERIOD_S - time.monotonic() % PERIOD_S)
            await self.poll()

    async def poll(self) -> None:
        """Ask for the metrics of all nodes once. Never raises ApiProblem: a plot has a gap then.

        The node that is configured asks the others: a password goes to no address that is
        registered as a node's."""
        who = self._who()
        if who is None:
            return
        query = {"limit": str(_NODES_MAX), "names": ",".join(WANTED)}
        try:
            answer = await self._client.get(who, "metrics", query)
        except ApiProblem as problem:
            self._complain(str(problem))
            return
        missing = [f"{each['node']}: {each['reason']}" for each in answer["meta"]["missing"]]
        self._complain("; ".join(missing))
        found = {each["node"]: each["totals"] for each in answer["data"]}
        if found:
            sample = self.history.add(time.time_ns() / 1e9, found)
            self._tell(f"data: {json.dumps(sample)}\n\n")

    def _complain(self, what: str) -> None:
        """Once for each reason; empty: there is none any more."""
        if what and what != self.failed:
            _log.warning("figures for plots are missing: %s", what)
        self.failed = what

    def _tell(self, line: str) -> None:
        for queue in self._streams:
            if queue.full():
                queue.get_nowait()  # A browser that sleeps misses samples; memory stays bounded.
            queue.put_nowait(line)

    def has_room(self, user: str) -> bool:
        """For one more stream of this user."""
        of_one = sum(each == user for each in self._streams.values())
        return len(self._streams) < self._streams_max and of_one < STREAMS_OF_ONE_MAX

    async def stream(self, user: str) -> AsyncIterator[str]:
        """Server-sent events: samples, and comments that keep proxies from closing."""
        if not self.has_room(user):  # others began since it was looked at
            return
        queue: asyncio.Queue[str] = asyncio.Queue(_QUEUED_MAX)
        self._streams[queue] = user
        try:
            yield ": begins\n\n"
            while True:
                line = ": still here\n\n"
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_BEAT_S):
                        line = await queue.get()
                yield line
        finally:
            del self._streams[queue]
