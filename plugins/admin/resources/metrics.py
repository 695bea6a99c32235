"""Metrics of all nodes, added up: for who watches the cluster through one of them."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from pydantic import Field

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.routes import (
    AdminListing,
    AdminRequest,
    Answer,
    AnyRoute,
    OwnPageQuery,
    expect,
)

_FRESH_MS: Final = 1_000
_LINE: Final = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})? (\S+)", re.MULTILINE)


class MetricsQuery(OwnPageQuery):
    """Which metrics."""

    names: str = Field(default="", max_length=4_000)
    """As in `/metrics`, like `lakemq_mqtt_connections`, by commas; empty: all."""


class MetricsRow(Answer):
    """The metrics of a node."""

    node: str
    totals: dict[str, float]
    """Name -> value, added up over all labels."""


def totals(text: str, wanted: Callable[[str], bool]) -> dict[str, float]:
    """Metric -> value, over all labels, from Prometheus' text."""
    found: dict[str, float] = defaultdict(float)
    for name, value in _LINE.findall(text):
        if wanted(name):
            with contextlib.suppress(ValueError):
                read = float(value)
                found[name] += read
    return dict(found)


class MetricsRoutes:
    """`/api/v1/metrics`."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node
        self._made: tuple[int, str] | None = None
        """When, and the text: at most once a second, however often it is asked for."""

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        return [
            AdminListing(
                "metrics", MetricsRow, self._all, self._rows, lambda each: each,
                {"node": lambda each: each}, query=MetricsQuery, own=True,
                summary="List metrics of all nodes, added up over their labels.",
            ),
        ]  # fmt: skip

    async def _all(self, request: AdminRequest) -> Sequence[str]:
        return [self._node.node_id]

    async def _rows(self, nodes: Sequence[str], request: AdminRequest) -> Sequence[MetricsRow]:
        names = expect(request.asked, MetricsQuery).names
        wanted = frozenset(names.split(",")).__contains__ if names else bool
        # In a thread: a node of many topics has some MB of it.
        found = await asyncio.to_thread(totals, self._text(), wanted)
        return [MetricsRow(node=node, totals=found) for node in nodes]

    def _text(self) -> str:
        now_ms = self._node.now_ms()
        if self._made is None or not 0 <= now_ms - self._made[0] < _FRESH_MS:
            self._made = now_ms, self._node.metrics()[0].decode()
        return self._made[1]
