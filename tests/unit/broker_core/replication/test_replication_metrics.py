"""Goal: operators see how far replicas are behind, and which partitions lack some."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from lakemq.broker_core.api.types import Leadership, TopicInfo
from lakemq.broker_core.replication_metrics import register_replication_metrics
from tests.support.replication.nodes import TestCluster


@pytest.fixture
async def cluster() -> AsyncIterator[TestCluster]:
    cluster = TestCluster()
    yield cluster
    await cluster.stop()


async def test_the_leader_tells_what_its_partitions_lack(cluster: TestCluster) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("broker_core")
    orphan = Leadership(None, 1, ("a", "b"))
    topics = [TopicInfo("t", "0" * 32, 2, leaders=(orphan, orphan._replace(replicas=("b", "a"))))]
    replication = cluster.nodes["a"].replication
    register_replication_metrics(meter, "a", replication, lambda: topics)

    def read() -> dict[str, float]:
        data = reader.get_metrics_data()
        assert data is not None
        return {
            metric.name.removeprefix("lakemq."): metric.data.data_points[0].value  # type: ignore
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    log = await cluster.elect("a", 1)
    await log.append(b"x")
    found = read()
    assert found["replication.sent"] == 2 * len(log.batches[0][1])
    calm = {
        "replication.lag_records": 0, "replication.lag_time": 0, "partitions.led": 1,
        "partitions.followed": 0, "partitions.under_replicated": 0, "partitions.under_min_isr": 0,
        "partitions.leaderless": 1, "isr.changes": 0, "elections": 1, "replication.received": 0,
    }  # fmt: skip
    assert {name: found[name] for name in calm} == calm
    assert cluster.nodes["b"].replication.bytes_in == len(log.batches[0][1])
    cluster.nodes["c"].log().held = True
    log.append(b"y")
    await asyncio.sleep(0.05)
    found = read()
    assert found["replication.lag_records"] == 1
    assert 0.04 <= found["replication.lag_time"] < 5
    await cluster.elect("a", 2, in_sync=["a"], among=["a"])
    found = read()
    assert found["partitions.under_replicated"] == found["partitions.under_min_isr"] == 1
    assert found["elections"] == 2
