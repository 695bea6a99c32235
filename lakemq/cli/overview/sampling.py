"""What `lakemq top` shows: states of the cluster, and rates of two samples of each node.

No node gets more than one request a second: what is asked goes in steps, and in each step a node
gets one request at most. `groups` is a step too, which the asked node passes on to all.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from lakemq.broker_core.api.admin_client import Refused, ask
from lakemq.broker_core.api.command_line import AdminOptions, ExitCode
from lakemq.cli.overview.reading import Reading
from lakemq.plugins.admin.dashboard.metrics import History, Sample, totals

STEP_S: Final = 1.0
"""From one step to the next, at least."""
STEPS: Final = 4
"""Of one sample."""
_AT_ONCE: Final = 8
_PAGE: Final = 500


@dataclass
class View:
    """One screen."""

    reading: Reading
    rates: dict[str, Sample] = field(default_factory=dict)
    """Node -> series of `PLOTS`; the rates are None in a node's first sample."""


class Sampler:
    """Asks again and again. Not for two threads."""

    def __init__(
        self,
        node: AdminOptions,
        ask: Callable[[AdminOptions, str], bytes] = ask,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._node = node
        self._ask = ask
        self._now_s = now_s
        self._sleep = sleep
        self._next_s = now_s()
        self._histories: dict[str, History] = {}

    def sample(self) -> View:
        """Takes `STEPS` seconds or more, the first time one less. Raises Refused."""
        cluster = self._page("cluster")
        view = View(Reading(cluster))
        view.reading.nodes = self._page(f"nodes?limit={_PAGE}")["data"]
        self.measure(view)
        try:
            page = self._page(f"groups?limit={_PAGE}")
        except Refused as refusal:
            if refusal.exit_code not in (ExitCode.DENIED, ExitCode.UNKNOWN):
                raise
            view.reading.denied.append("groups")
            return view
        view.reading.groups = page["data"]
        for each in page["meta"].get("missing", ()):
            view.reading.missing[each["node"]] = each["reason"]
        return view

    def measure(self, view: View) -> None:
        """Ask every node of the view for its metrics, in one step."""
        self._step()
        own = view.reading.cluster["node"]
        there = {row["node"]: row for row in view.reading.nodes if row["state"] != "fenced"}
        places = {name: self._place(row, own) for name, row in there.items()}
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            texts = dict(zip(places, threads.map(self._metrics, places.values()), strict=True))
        self._histories = {name: self._histories.get(name) or History() for name in places}
        for name, text in texts.items():
            if text:
                at_s = self._now_s()
                view.rates[name] = self._histories[name].add(at_s, {name: totals(text)})

    def _place(self, row: dict[str, Any], own: str) -> AdminOptions | None:
        """The node that was named on the command line is asked there, the others where they say."""
        if row["node"] == own:
            return self._node
        address = row["addresses"].get("admin", "")
        scheme = "https://" if self._node.admin.startswith("https://") else "http://"
        return dataclasses.replace(self._node, admin=scheme + address) if address else None

    def _metrics(self, place: AdminOptions | None) -> str:
        """Empty: it has no admin API, or does not tell."""
        try:
            return self._ask(place, "metrics").decode() if place else ""
        except Refused:
            return ""

    def _page(self, path: str) -> dict[str, Any]:
        self._step()
        page: dict[str, Any] = json.loads(self._ask(self._node, f"api/v1/{path}"))
        return page

    def _step(self) -> None:
        wait_s = self._next_s - self._now_s()
        if wait_s > 0:
            self._sleep(wait_s)
        self._next_s = max(self._next_s, self._now_s()) + STEP_S
