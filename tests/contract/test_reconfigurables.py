"""Goal: parts that take settings while they run take them all at once, when all have agreed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from lakemq.testing import ReconfigurableContract


class TestJournal(ReconfigurableContract):
    @pytest.fixture
    def reconfigurable(self, tmp_path: Path) -> JournalStorage:
        return JournalStorage(tmp_path, JournalSettings())

    @pytest.fixture
    def in_use(self, reconfigurable: JournalStorage) -> Any:
        return lambda: reconfigurable.settings.tail_max_bytes

    @pytest.fixture
    def settings(self) -> JournalSettings:
        return JournalSettings(tail_max_bytes=1)
