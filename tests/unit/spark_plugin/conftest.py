"""A journal in memory, where tasks of spark_plugin find it under the address `memory`."""

from __future__ import annotations

import pytest

from lakemq.spark_plugin.source import broker_reader as journal
from tests.support.memory_journal import MemoryJournal


@pytest.fixture
def memory(monkeypatch) -> MemoryJournal:
    client = MemoryJournal()
    monkeypatch.setitem(journal._clients, "memory", client)
    return client
