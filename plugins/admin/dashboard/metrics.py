"""Figures for plots: of metrics, as rates, for the last hour."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

PERIOD_S: Final = 5
KEPT_S: Final = 3600


@dataclass(frozen=True)
class Series:
    """One line of a plot."""

    name: str
    label: str
    metrics: Sequence[str]
    """Names in `/metrics`, which are added up."""
    is_rate: bool = True
    """Of counters: shown per second."""


@dataclass(frozen=True)
class Plot:
    """Lines over the same axes."""

    name: str
    title: str
    unit: str
    series: Sequence[Series]


PLOTS: Final = (
    Plot("records", "Records", "per second", (
        Series("stored", "Stored", ("lakemq_journal_appended_records_total",)),
        Series("mqtt_in", "MQTT in", ("lakemq_mqtt_publishes_received_total",)),
        Series("mqtt_out", "MQTT out", ("lakemq_mqtt_publishes_sent_total",)),
    )),
    Plot("bytes", "Bytes", "per second", (
        Series("bytes_stored", "Stored", ("lakemq_journal_appended_bytes_total",)),
        Series("bytes_out", "Out", (
            "lakemq_native_fetch_bytes_total", "lakemq_mqtt_sent_bytes_total",
        )),
    )),
    Plot("clients", "MQTT clients", "connected", (
        Series("clients", "Connected", ("lakemq_mqtt_connections",), is_rate=False),
    )),
    Plot("size", "Stored", "bytes", (
        Series("size", "On all nodes", ("lakemq_journal_size_bytes",), is_rate=False),
    )),
)  # fmt: skip
ALL_SERIES: Final = tuple(series for plot in PLOTS for series in plot.series)
WANTED: Final = tuple(sorted({name for each in ALL_SERIES for name in each.metrics}))
"""Names of metrics that are asked for."""
Sample = Mapping[str, float | None]
"""`t`: seconds since 1970, and a value for each series; None: not known."""


class History:
    """The last hour, a sample each five seconds."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=KEPT_S // PERIOD_S)
        self._before: dict[str, tuple[float, dict[str, float]]] = {}

    def add(self, at_s: float, nodes: Mapping[str, Mapping[str, float]]) -> Sample:
        """`nodes`: node id -> metric -> its value. A node that began again counts from zero: what
        it did since is its rate."""
        values: dict[str, float | None] = {series.name: None for series in ALL_SERIES}
        for node, now in nodes.items():
            began_s, before = self._before.get(node, (at_s, {}))
            for series in ALL_SERIES:
                value = _value(series, now, before, at_s - began_s)
                if value is not None:
                    values[series.name] = (values[series.name] or 0.0) + value
        self._before = {node: (at_s, dict(now)) for node, now in nodes.items()}
        sample = {"t": round(at_s, 3), **values}
        self.samples.append(sample)
        return sample

    @property
    def last(self) -> Sample | None:
        """The newest sample."""
        return self.samples[-1] if self.samples else None

    def columns(self) -> dict[str, list[float | None]]:
        """As plots take them: `t` and series -> values, oldest first."""
        names = ("t", *(series.name for series in ALL_SERIES))
        return {name: [sample.get(name) for sample in self.samples] for name in names}


def _value(
    series: Series, now: Mapping[str, float], before: Mapping[str, float], seconds: float
) -> float | None:
    """None: the node does not tell, or not since when."""
    known = [name for name in series.metrics if name in now]
    if not known:
        return None
    if not series.is_rate:
        return sum(now[name] for name in known)
    if seconds <= 0 or not all(name in before for name in known):
        return None
    grown = sum(
        now[name] - before[name] if now[name] >= before[name] else now[name] for name in known
    )
    return round(grown / seconds, 3)
