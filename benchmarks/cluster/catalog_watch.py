"""What a change of one partition costs the nodes that follow the catalog.

    python -m benchmarks.cluster.catalog_watch [--partitions 10000] [--nodes 3]

One member, and so many nodes of the same process that follow it over gRPC and hold no replica.
Prints the CPU time of one in-sync change until all nodes know it, with and without those nodes, and
the size of what each of them is sent.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

from lakemq.broker_core.api.ports import Storage
from lakemq.broker_core.api.types import TopicConfig
from lakemq.broker_core.catalog_view import CatalogView
from lakemq.broker_core.partitions import Partitions
from lakemq.broker_core.replication.assignments import Assignments
from lakemq.meta_service.api.convert import change_message
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import InSyncChange, NodeRegistration, PartitionsChange
from lakemq.meta_service.server.member import MetaMember

CHANGES = 40
NODES = "abc"
TOPIC = "t"


class _NoStorage:
    """Of a node that is assigned nothing."""

    async def stored_topic_ids(self) -> set[str]:
        return set()

    def is_full(self) -> bool:
        return False

    def disowned(self) -> tuple[()]:
        return ()


class _NoAssignments:
    active = True


async def _follow(address: str, stack: AsyncExitStack) -> Partitions:
    client = RemoteClient([address])
    stack.push_async_callback(client.close)
    partitions = Partitions("z", cast(Storage, _NoStorage()), cast(Assignments, _NoAssignments()))
    view = CatalogView(client, partitions, TopicConfig())
    revision, _ = await view.load()
    view.start(revision + 1)
    stack.push_async_callback(view.stop)
    return partitions


async def _measure(partitions: int, followers: int) -> tuple[float, int]:
    """(ms of CPU of a change, bytes that a follower is sent)."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        member = MetaMember(
            MetaSettings(port=0), node_id="n1", host="127.0.0.1", data_dir=folder / "meta"
        )
        await member.start()
        stack.push_async_callback(member.stop)
        control = member.control()
        registered = [await control.register_node(NodeRegistration(each, {})) for each in NODES]
        epochs = {each.node_id: each.broker_epoch for each in registered}
        made = await control.create_topic(TOPIC, partitions, {}, replication=3, min_in_sync=2)
        address = member.addresses()["meta"]
        views = [await _follow(address, stack) for _ in range(followers)]
        spent_ms = []
        for number in range(CHANGES):
            old = made.partitions[number * 37 % partitions]
            leader = old.leader or ""
            wish = InSyncChange(made.topic_id, old.partition, 0, 0, {leader: epochs[leader]})
            begun_s = time.process_time()
            await control.change_in_sync(leader, epochs[leader], [wish])
            while any(not v.topic(TOPIC).leaders[old.partition].partition_epoch for v in views):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            spent_ms.append((time.process_time() - begun_s) * 1000)
        page = PartitionsChange(1, TOPIC, made.topic_id, made.partitions[:32])
        return statistics.median(spent_ms), change_message(page, last=True).ByteSize()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=3)
    options = parser.parse_args()
    for followers in (0, options.nodes):
        spent_ms, size = asyncio.run(_measure(options.partitions, followers))
        print(f"{followers} nodes follow: {spent_ms:.2f} ms of CPU a change, {size} bytes to each")


if __name__ == "__main__":
    main()
