"""The journal's hooks: settings, storage, commands; and its metrics."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from lakemq.broker_core.api.errors import StorageFenced
from lakemq.broker_core.api.ports import PluginContext
from lakemq.plugins.journal import plugin
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.testing.storage import TOPIC, append, batch_of, open_alone


def test_hooks_give_a_storage_whose_metrics_can_be_read(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    assert plugin.register_settings() is JournalSettings
    context = PluginContext(
        "journal", JournalSettings(free_min_bytes=0), "node-1", tmp_path, provider.get_meter("t")
    )
    storage = plugin.register_storage(context)

    async def use() -> dict[str, float]:
        await storage.start()
        log = await open_alone(storage, TOPIC, 0)
        await append(log, batch_of(b"a", b"b"))
        await log.fetch(log.log_start_offset, bytes_max=1000)
        found = read(reader)
        await storage.stop()
        return found

    found = asyncio.run(use())
    provider.shutdown()
    assert found["lakemq.journal.appended_records"] == 2
    assert found["lakemq.journal.flushes"] == 1
    assert found["lakemq.journal.tail_reads"] == 1
    assert found["lakemq.journal.partitions"] == 1
    assert found["lakemq.journal.fenced_partitions"] == 0
    assert found["lakemq.journal.unflushed_bytes"] == 0
    assert found["lakemq.journal.size_bytes"] == found["lakemq.journal.appended_bytes"]
    assert found["lakemq.journal.flush_time"] > 0


def test_a_disk_that_fails_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    context = PluginContext(
        "journal", JournalSettings(free_min_bytes=0), "node-1", tmp_path, provider.get_meter("t")
    )
    storage = plugin.register_storage(context)
    asked: list[dict[str, float]] = []

    def fails(descriptor: int) -> None:
        asked.append(read(reader))
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def use() -> None:
        await storage.start()
        log = await open_alone(storage, TOPIC, 0)
        monkeypatch.setattr(os, "fdatasync", fails)
        with pytest.raises(StorageFenced):
            await append(log, batch_of(b"a", b"b"))
        asked.append(read(reader))
        await storage.stop()

    asyncio.run(use())
    provider.shutdown()
    # The log is fenced on disk, too, which fails as well.
    during, *_, after = asked
    assert during["lakemq.journal.unflushed_bytes"] > 0
    assert during["lakemq.journal.fenced_partitions"] == 0
    assert during["lakemq.journal.failed_flushes"] == 0
    assert after["lakemq.journal.unflushed_bytes"] == 0
    assert after["lakemq.journal.fenced_partitions"] == 1
    assert after["lakemq.journal.failed_flushes"] == 1


def read(reader: InMemoryMetricReader) -> dict[str, float]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: metric.data.data_points[0].value  # type: ignore[union-attr]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_hooks_give_the_command() -> None:
    assert [name for name, _ in plugin.register_commands()] == ["journal"]
