"""Goal: the log that simulations of replication run on is a replicated log, as engines have it."""

from __future__ import annotations

from typing import Any

import pytest

from lakemq.testing import MakeStorage, ReplicaContract
from lakemq.testing import replica as suite
from tests.support.replica_log import Disk
from tests.support.replica_storage import SimulatedReplicaLog, SimulatedStorage


class TestSimulatedLog(ReplicaContract):
    @pytest.fixture
    def make_storage(self, monkeypatch: pytest.MonkeyPatch) -> MakeStorage:
        # It has what replication calls; clients of a partition find no schema, time or size there.
        async def opened(storage: Any, partition: int) -> SimulatedReplicaLog:
            return await storage.open_partition(suite.TOPIC, partition)

        monkeypatch.setattr(suite, "open_replica", opened)
        disks: dict[int, Disk] = {}
        return lambda: SimulatedStorage(disks)  # type: ignore[return-value]
