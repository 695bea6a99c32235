"""A whole broker in the test's own event loop, without the built-in protocols."""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from opentelemetry.metrics import NoOpMeter

from lakemq.broker_core.api.hooks import ENTRY_POINT_GROUP, hookimpl
from lakemq.broker_core.api.ports import Broker, PluginContext, Storage
from lakemq.broker_core.api.records.batch import RecordBatch, split
from lakemq.broker_core.api.settings import PluginSettings
from lakemq.broker_core.api.types import Record
from lakemq.broker_core.configuration.config import ConfigSource, checked_config, joined
from lakemq.node import Node, wall_clock_ms

FETCH_BYTES: Final = 1 << 20
_STORAGE: Final = "storage_under_test"

Plugin = ModuleType | SimpleNamespace


def plugin_context(
    settings: PluginSettings, data_dir: Path, *, name: str = "test", node_id: str = "node-1"
) -> PluginContext:
    """What the host gives a plugin's hooks, with a meter that counts nothing."""
    return PluginContext(name, settings, node_id, data_dir, NoOpMeter(f"plugins.{name}"))


class RunningBroker:
    """A broker that has started. `broker` is what plugins are given."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def broker(self) -> Broker:
        """The `Broker` port, as hooks get it."""
        return self._node.broker

    @property
    def addresses(self) -> dict[str, str]:
        """Name of a listener -> `host:port` that is bound."""
        return self._node.addresses()

    async def records(self, topic: str) -> list[Record]:
        """All records of a topic that can be read: by partition, then by offset."""
        found: list[Record] = []
        for partition in range(self.broker.topic(topic).partitions):
            log = self.broker.partition(topic, partition)
            offset = log.log_start_offset
            while offset < log.high_watermark:
                result = await log.fetch(offset, bytes_max=FETCH_BYTES)
                for position, header in split(result.data):
                    end = position + header.total_bytes
                    found += RecordBatch(result.data[position:end]).records()
                offset = result.next_offset
        return found

    async def values(self, topic: str) -> list[bytes | None]:
        """The same, values alone."""
        return [record.value for record in await self.records(topic)]


@asynccontextmanager
async def running_broker(
    folder: Path,
    *,
    plugins: Mapping[str, Plugin] | None = None,
    config: str = "",
    storage: Storage | None = None,
    now_ms: Callable[[], int] | None = None,
) -> AsyncIterator[RunningBroker]:
    """A real node with its data in `folder`: the core, a MetaService of one member, the journal.

    `plugins`: section name -> module (or namespace) with hooks; these need not be installed, and
    are on. `config`: TOML, as in `lakemq.toml`; the built-in protocols are off unless it has
    sections for them. `storage`: an engine in place of the journal. Raises what a node does that
    can't start: ConfigError, PluginError, StartupError.
    """
    given = dict(plugins or {})
    if storage is not None:
        given[_STORAGE] = SimpleNamespace(register_storage=hookimpl(lambda: storage))
    source = ConfigSource("lakemq.toml", config, _sections(folder, config, given), {})
    checked, errors = checked_config(source)
    if checked is None:
        raise joined(errors)
    points = [*entry_points(group=ENTRY_POINT_GROUP), *map(_Given, given, given.values())]
    node = Node(checked, now_ms=now_ms or wall_clock_ms, plugins=points)
    await node.start()
    try:
        yield RunningBroker(node)
    finally:
        await node.stop()


@dataclass(frozen=True)
class _Given:
    """Stands in for the entry point of a plugin that is not installed."""

    name: str
    plugin: Plugin
    dist = None

    def load(self) -> Plugin:
        return self.plugin


def _sections(folder: Path, config: str, given: Mapping[str, Plugin]) -> dict[str, Any]:
    """What the configuration says, on top of what a broker in a test is made of."""
    written = tomllib.loads(config)
    plugins: dict[str, Any] = {name: {"enabled": False} for name in ("mqtt", "native", "admin")}
    plugins |= {name: {} for name in given}
    if _STORAGE in given:
        plugins["journal"] = {"enabled": False}
    return {
        "meta": {"port": 0, "raft_port": 0},
        "cluster": {"peer_port": 0},
        **written,
        "node": {**written.get("node", {}), "data_dir": str(folder)},
        "plugins": {**plugins, **written.get("plugins", {})},
    }
