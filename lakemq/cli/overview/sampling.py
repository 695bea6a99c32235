"""What `lakemq top` shows: states of the cluster, and rates of two samples of each node.

No node gets more than one request a second: what is asked goes in steps, and in each step a node
gets one request at most. `groups` and `metrics` are steps that the asked node passes on to all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from lakemq.broker_core.api.admin_client import Refused, ask
from lakemq.broker_core.api.command_line import AdminOptions, ExitCode
from lakemq.cli.overview.reading import Reading
from lakemq.plugins.admin.dashboard.metrics import WANTED, History, Sample

STEP_S: Final = 1.0
"""From one step to the next, at least."""
STEPS: Final = 4
"""Of one sample."""
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
        """Have the metrics of all nodes added to the view, in one step. The asked node asks the
        others: a password goes to no address that is registered as a node's."""
        try:
            rows = self._page(f"metrics?limit={_PAGE}&names={','.join(WANTED)}")["data"]
        except Refused as refusal:
            if refusal.exit_code not in (ExitCode.DENIED, ExitCode.UNKNOWN):
                raise
            return
        at_s = self._now_s()
        names = [row["node"] for row in rows]
        self._histories = {name: self._histories.get(name) or History() for name in names}
        for row in rows:
            name = row["node"]
            view.rates[name] = self._histories[name].add(at_s, {name: row["totals"]})

    def _page(self, path: str) -> dict[str, Any]:
        self._step()
        page: dict[str, Any] = json.loads(self._ask(self._node, f"api/v1/{path}"))
        return page

    def _step(self) -> None:
        wait_s = self._next_s - self._now_s()
        if wait_s > 0:
            self._sleep(wait_s)
        self._next_s = max(self._next_s, self._now_s()) + STEP_S
