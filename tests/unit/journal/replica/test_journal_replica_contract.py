"""Goal: the journal is what replication expects of a storage engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from lakemq.testing import MakeStorage, ReplicaContract


class TestJournal(ReplicaContract):
    @pytest.fixture
    def make_storage(self, tmp_path: Path) -> MakeStorage:
        return lambda: JournalStorage(tmp_path / "journal", JournalSettings(free_min_bytes=0))


class TestJournalReadingFromDisk(ReplicaContract):
    """The same with no tail in memory."""

    @pytest.fixture
    def make_storage(self, tmp_path: Path) -> MakeStorage:
        settings = JournalSettings(tail_max_bytes=0, index_interval_bytes=1024, free_min_bytes=0)
        return lambda: JournalStorage(tmp_path / "journal", settings)
