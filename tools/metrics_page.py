"""docs/metrics.md, from the instruments that a node and an export make."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter, NoOpMeter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry

from lakemq.broker_core.configuration.config import load_config
from lakemq.node import Node
from lakemq.spark_plugin.export.job.metrics import PREFIX, observe

ATTRIBUTES: Final[dict[str, tuple[str, ...]]] = {
    "lakemq.bridge.": ("link",),
    "lakemq.export.": ("topic", "export"),
    "lakemq.interceptors.": ("plugin",),
    "lakemq.meta.proposal.within": ("le_ms",),
    "lakemq.native.group.lag": ("group", "topic"),
    "lakemq.native.group.lag.left_out": (),
    "lakemq.native.queue.backlog": ("group", "topic"),
    "lakemq.native.queue.consumers": ("group", "topic"),
    "lakemq.native.queue.held": ("group", "topic"),
    "lakemq.node.config.reloads": ("outcome",),
    "lakemq.webhook": ("webhook",),
    "process.context_switches": ("process.context_switch.type",),
    "process.cpu.time": ("cpu.mode",),
    "process.paging.faults": ("system.paging.fault.type",),
    "system.filesystem.limit": ("system.filesystem.mountpoint",),
    "system.filesystem.usage": ("system.filesystem.mountpoint", "system.filesystem.state"),
}
"""Names, or beginnings of them -> attributes; the longest says. `test_metrics.py` compares them
with what a node really tells."""
_ROOMS: Final = {
    "process": "The process",
    "lakemq.node": "The event loop",
    "broker_core": "Broker",
    "broker_core.security": "Security",
    "meta_service": "MetaService",
    "plugins.journal": "Journal",
    "plugins.mqtt": "MQTT",
    "plugins.bridge": "Bridges",
    "plugins.native": "Native protocol",
    "plugins.ledger": "Completeness ledger",
    "plugins.webhook": "Webhooks",
    PREFIX: "Exports",
}
_CONFIG: Final = """
[node]
data_dir = "{folder}"
[meta]
port = 0
raft_port = {port}
members = {{ node-1 = "127.0.0.1:{port}" }}
[cluster]
peer_port = 0
[admin]
port = 0
[plugins.mqtt]
port = 0
[plugins.native]
port = 0
[[plugins.bridge.links]]
name = "far"
url = "mqtt://127.0.0.1:1"
[[plugins.bridge.links.rules]]
direction = "out"
filter = "#"
[[plugins.webhook.hooks]]
name = "far"
topic = "far"
url = "http://127.0.0.1:1/"
"""
_INTRODUCTION: Final = """\
# Metrics

<!-- Generated from the instruments of a node by `make generate`; do not edit. -->

All that a node tells: to Prometheus at `/metrics` of the [admin API](admin-api.md), and by OTLP
where [`[telemetry]`](configuration.md#telemetry) or OpenTelemetry's own variables
(`OTEL_METRICS_EXPORTER=otlp`, `OTEL_EXPORTER_OTLP_ENDPOINT`, ...) say so. Exports are processes of
their own with a page of their own (`--metrics`).

- **Names.** What [OpenTelemetry's conventions](https://opentelemetry.io/docs/specs/semconv/) have a
  name for has that name (`process.*`, `system.*`); their `messaging.*` metrics are those of
  clients, not of brokers. All else begins with `lakemq.`. The second column is the
  name in Prometheus.
- **Kinds.** A counter only grows, from 0 at the node's start. A gauge is a level.
- **Attributes** are few: links and plugins are those of the configuration; of consumer groups and
  queues at most `lag_metrics_max` are shown, the other queues in one series with
  `otel.metric.overflow="true"`. Every series in Prometheus has `otel_scope_name`, the room that
  tells it, too.
- Times are in seconds, sizes in bytes. A counter of seconds by time is a share:
  `rate(process_cpu_time_seconds_total[1m])`.
"""


class Instrument(NamedTuple):
    room: str
    name: str
    kind: str
    """`counter` or `gauge`."""
    unit: str
    description: str


class _Notes(NoOpMeter):
    """Notes what is made, and makes nothing."""

    def __init__(self, room: str, found: list[Instrument]) -> None:
        super().__init__(room)
        self._found = found

    def _note(self, kind: str) -> Callable[..., Any]:
        def made(
            name: str, callbacks: Sequence[object] | None = None, unit: str = "",
            description: str = "",
        ) -> None:  # fmt: skip
            self._found.append(Instrument(self.name, name, kind, unit, description))

        return made

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("create_"):
            return super().__getattribute__(name)
        return self._note("counter" if name == "create_observable_counter" else "gauge")


class _Telemetry:
    """Stands where a node has its `Telemetry`."""

    push = tracing = traces = None

    def __init__(self) -> None:
        self.found: list[Instrument] = []

    def meter(self, name: str) -> Meter:
        return _Notes(name, self.found)

    def close(self) -> None:
        """There is nothing to close."""


def attributes_of(name: str) -> tuple[str, ...]:
    """Of the series of a metric."""
    found = [each for each in ATTRIBUTES if name.startswith(each)]
    return ATTRIBUTES[max(found, key=len)] if found else ()


def instruments() -> list[Instrument]:
    """All of a node, which is started for it, and of an export, in the order of their names."""
    telemetry = _Telemetry()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_start(Path(folder), telemetry))
    observe([], telemetry.meter(PREFIX))
    return sorted(telemetry.found, key=lambda each: each.name)


async def _start(folder: Path, telemetry: _Telemetry) -> None:
    from tests.support.node.ports import free_port

    file = folder / "lakemq.toml"
    file.write_text(_CONFIG.format(folder=folder / "data", port=free_port()))
    node = Node(load_config(file, {}))
    node.telemetry.close()
    node.telemetry = telemetry  # type: ignore[assignment]
    await node.start()
    node.watch_loop()
    await node.stop()


def prometheus_names(found: Sequence[Instrument]) -> dict[str, str]:
    """OpenTelemetry's name -> Prometheus', as the exporter makes it."""
    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(registry=registry)], shutdown_on_exit=False)
    # The description carries the name to the other side.
    for each in found:
        meter = provider.get_meter("names")
        make = (
            meter.create_observable_counter
            if each.kind == "counter"
            else meter.create_observable_gauge
        )
        make(each.name, [lambda _: [Observation(1)]], each.unit, each.name)
    names = {
        family.documentation: family.name + ("_total" if family.type == "counter" else "")
        for family in registry.collect()
    }
    provider.shutdown()
    return {each.name: names[each.name] for each in found}


def metrics_page() -> str:
    found = instruments()
    names = prometheus_names(found)
    parts = [_INTRODUCTION]
    for room, title in _ROOMS.items():
        lines = [f"## {title}", "", "| metric | Prometheus | kind | unit | attributes | meaning |"]
        lines.append("|---|---|---|---|---|---|")
        for each in found:
            if each.room == room:
                attributes = ", ".join(f"`{name}`" for name in attributes_of(each.name))
                unit = f"`{each.unit}`" if each.unit else ""
                lines.append(
                    f"| `{each.name}` | `{names[each.name]}` | {each.kind} | {unit} | {attributes} "
                    f"| {each.description} |"
                )
        parts.append("\n".join(lines) + "\n")
    left = {each.room for each in found} - set(_ROOMS)
    if left:
        raise ValueError(f"metrics of rooms without a title in tools/metrics_page.py: {left}")
    return re.sub(r" +\|", " |", "\n".join(parts))
