"""MQTT and coordinators between nodes: `python -m benchmarks.cluster.mqtt_nodes
[--only other-node takeover coordinators] [--seconds 3] [--rounds 5]`.

Three LakeMQ processes on one machine. `other-node`: QoS 1 with publishers and their subscriber at
one node beside the same at two, in turns; CPU is that of all nodes for each publish. `takeover`: a
client id connects to another node than before, CONNECT to CONNACK. `coordinators`: the longest time
without a commit, from when the node dies that coordinates a transactional id, and in turns the
longest time without an ack when the leader of a partition dies.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import lakemq
from benchmarks.cluster import lakemq_cases
from benchmarks.cluster.figures import VALUE, outages, percentiles
from benchmarks.cluster.lakemq_cases import REPLICATED, recover, topic_of
from benchmarks.harness.processes import cpu_s
from benchmarks.load import publishers, subscribers
from benchmarks.load.crew import crew, go, ready, told
from benchmarks.load.packets import Load, accepted, dial, encode
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.transactions.types import TRANSACTION, Owner
from lakemq.broker_core.transactions.formats import STAGED_TOPIC, encode_owner
from lakemq.local_cluster.cluster import LocalCluster
from lakemq.plugins.mqtt.wire.packets import V311, Connect
from tests.support.cluster.topics import partitions

NAMES = ("other-node", "takeover", "coordinators")
LOAD = Load(publishers=100, names=100, qos=1, window=20, subscribers=1, subscribe_qos=1)
TAKEOVERS = 50
SETTLE_S = 5.0
"""After a start: the leaders of partitions are spread, the homes of sessions with them."""
ROOM = """[plugins.mqtt]
write_buffer_max_bytes = 268435456
"""


def port(cluster: LocalCluster, name: str) -> int:
    return int(cluster.address(name, "mqtt").rpartition(":")[2])


def passed(cluster: LocalCluster, publisher: str, subscriber: str, seconds: float) -> list[float]:
    """(publishes/s that were delivered, CPU us of all nodes for each)."""
    pids = [node.pid for node in cluster.nodes.values()]
    with crew() as members:
        sender = members.start(publishers.windows, port(cluster, publisher), LOAD, seconds)
        reader = members.start(subscribers.receive, port(cluster, subscriber), LOAD)
        ready([sender, reader])
        time.sleep(0.5)  # nodes tell each other what is subscribed to
        before, began = cpu_s(pids), time.perf_counter()
        go([sender, reader])
        sent = told(sender)["count"]
        reader.send(sent)
        got = told(reader)
    if got["count"] < sent:
        raise RuntimeError(f"{got['count']} of {sent} publishes were delivered")
    return [sent / (got["last"] - began), 1e6 * (cpu_s(pids) - before) / sent]


async def other_node(folder: Path, seconds: float, rounds: int) -> None:
    """Of one replica, whose leader the publishers' node is; and of three."""
    for replicas in (1, 3):
        config = f"{ROOM}[topics]\nreplication = {replicas}\n"
        with LocalCluster(folder / str(replicas), links=False, config=config) as cluster:
            async with lakemq.Client(cluster.bootstrap) as client:
                (described,) = (await client.describe_topic("mqtt")).partitions
            here = described.leader
            there = next(name for name in cluster.names if name != here)
            found: dict[str, list[list[float]]] = {here: [], there: []}
            for _ in range(rounds):
                for name, figures in found.items():
                    figures.append(passed(cluster, here, name, seconds))
            for what, name in (("one node", here), ("two nodes", there)):
                rate, cpu_us = map(statistics.median, zip(*found[name], strict=True))
                print(
                    f"QoS 1, {what}, {replicas} replica(s): {rate:,.0f}/s, {cpu_us:.1f} us of CPU "
                    "each",
                    flush=True,
                )
            ratios = [two[0] / one[0] for one, two in zip(*found.values(), strict=True)]
            print(f"two nodes of one (aim 0.5): {statistics.median(ratios):.2f}", flush=True)


def takeover(folder: Path) -> None:
    with LocalCluster(folder, links=False) as cluster:
        names, took_s = cluster.names, list[float]()
        time.sleep(SETTLE_S)
        sock = dial(port(cluster, names[0]), "taken", clean=False)
        for number in range(TAKEOVERS):
            new = dial_to(port(cluster, names[(number + 1) % 3]), took_s)
            assert sock.recv(1) == b"", "the former connection was not ended"
            sock.close()
            sock = new
        percentiles("CONNECT to CONNACK at another node (aim 50)", took_s)
        print(f"{'':38} longest {max(took_s) * 1000:8.1f} ms", flush=True)


def dial_to(to: int, took_s: list[float]) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", to), timeout=60)
    began = time.perf_counter()
    sock.sendall(encode(Connect("taken", clean_start=False), V311))
    accepted(sock)
    took_s.append(time.perf_counter() - began)
    return sock


async def coordinators(folder: Path, rounds: int) -> None:
    with LocalCluster(folder) as cluster:
        leader = await lakemq_cases.failover(cluster, "kill -9", rounds, cluster.kill)
        found = [await without_commits(cluster, f"id-{number}") for number in range(rounds)]
        coordinator = outages("LakeMQ, coordinator, kill -9", found)
        print(f"the coordinator beyond the leader (aim 1 s): {coordinator - leader:.2f} s")


async def without_commits(cluster: LocalCluster, name: str) -> float:
    async with lakemq.Client(cluster.bootstrap, timeout_s=60) as client:
        topic = await topic_of(client, name, REPLICATED)
        done_s: list[float] = []
        committing = asyncio.create_task(commit_on(client, name, topic, done_s))
        await asyncio.sleep(2)
        staged = await asyncio.to_thread(partitions, cluster, STAGED_TOPIC)
        at = partition_of(encode_owner(Owner(TRANSACTION, name)), len(staged))
        coordinator, began = str(staged[at].leader), time.perf_counter()
        await asyncio.to_thread(cluster.kill, coordinator)
        longest = await lakemq_cases.outage(done_s, began, time.perf_counter())
        committing.cancel()
        await asyncio.gather(committing, return_exceptions=True)
    await asyncio.to_thread(recover, cluster, coordinator)
    return longest


async def commit_on(client: lakemq.Client, name: str, topic: str, done_s: list[float]) -> None:
    """Transactions of one record, one after the other; notes the time of each commit."""
    while True:
        with suppress(LakeMQError):  # its end is known to a new producer
            producer = await client.transactional_producer(name)
            while True:
                async with producer.transaction() as transaction:
                    await transaction.send(topic, VALUE)
                done_s.append(time.perf_counter())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        if "other-node" in given.only:
            asyncio.run(other_node(folder / "other", given.seconds, given.rounds))
        if "takeover" in given.only:
            takeover(folder / "takeover")
        if "coordinators" in given.only:
            asyncio.run(coordinators(folder / "coordinators", given.rounds))
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
