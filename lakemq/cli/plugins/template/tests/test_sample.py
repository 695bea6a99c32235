"""The contract that every interceptor keeps, and the plugin in a whole broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lakemq_sample.plugin
import pytest
from lakemq_sample.interceptor import SizeLimit

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.types import Columns, Principal
from lakemq.testing import InterceptorContract, running_broker


class TestSizeLimit(InterceptorContract):
    @pytest.fixture
    def interceptor(self) -> SizeLimit:
        return SizeLimit(100)

    @pytest.fixture
    def refused(self) -> Sequence[Columns]:
        return [Columns([b"x" * 101]), Columns([b"short", b"x" * 101])]


@pytest.mark.asyncio
async def test_large_values_are_refused_by_a_broker(tmp_path: Path) -> None:
    async with running_broker(
        tmp_path,
        plugins={"sample": lakemq_sample.plugin},
        config="[plugins.sample]\nvalue_max_bytes = 10\n",
    ) as running:
        await running.broker.create_topic("readings", partitions=1)
        short, long = await running.broker.publish(
            "readings", Columns([b"short", b"much too long"]), principal=Principal("ann")
        )
        stored = [record.value for record in await running.records("readings")]
    assert not isinstance(short, InvalidRequest)
    assert isinstance(long, InvalidRequest)
    assert stored == [b"short"]
