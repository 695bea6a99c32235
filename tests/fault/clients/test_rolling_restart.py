"""Goal: all nodes are restarted one after the other under everything that a cluster does at once,
and nothing is lost, comes twice where once is promised, or stands still.

Method: three real processes in three racks, stopped as an operator does (docs/cluster.md).
Idempotent producers with a reader that reads from followers, a consumer group, a queue,
transactions, scheduled records, and MQTT publishers and subscribers of each QoS, shared and
retained, go on all the while. Each has the history checker of its own tests.
`LAKEMQ_FAULT_ROUNDS=2` restarts every node twice; by default one is, the one that leads most.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest

import lakemq
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.testing import Cluster
from tests.support.cluster.group_load import Offsets, Readers
from tests.support.cluster.load import Load, Sender, until
from tests.support.cluster.queue_load import Consumers, backlog
from tests.support.cluster.schedule_load import Scheduling
from tests.support.cluster.topics import ask, made, until_all_in_sync
from tests.support.cluster.transaction_load import Transactions
from tests.support.mqtt.roaming import Roaming, RoamingPaho
from tests.support.mqtt.roaming_load import Publishers, by_name, lacks, problems, stored

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1800)]
ROUNDS = int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1"))
PARTITIONS = 3
CONFIG = """
[cluster]
ack_wait_ms = 100000
[topics]
replication = 3
min_in_sync = 2
[[plugins.mqtt.bindings]]
filter = "m/#"
topic = "devices"
partitions = 3
"""
GOES_ON_MAX_S = 120.0
"""On a busy machine."""
KEPT = 5
"""Retained names of each publisher."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made_here = Cluster(tmp_path_factory.mktemp("rolling"), config=CONFIG, links=False)
    for name, node in made_here.nodes.items():
        file = node.folder / "lakemq.toml"
        file.write_text(file.read_text().replace("[node]\n", f'[node]\nrack = "{name}"\n', 1))
    with made_here as running:
        yield running


class Devices:
    """MQTT clients that come to any node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ports = [int(cluster.address(n, "mqtt").rpartition(":")[2]) for n in cluster.names]
        self.readers = [self._client(f"reads-{number}") for number in range(3)]
        self.members = [self._client(f"shares-{number}") for number in range(3)]
        for each in self.readers:
            each.subscribe("m/#", 2)
        for each in self.members:
            each.subscribe("$share/all/m/+/1", 1)
        everyone = [*self.readers, *self.members]
        until(lambda: all(each.subscribed.is_set() for each in everyone), GOES_ON_MAX_S)
        self.publishers = Publishers([self._client(f"sends-{n}") for n in range(3)], "m")
        self.extras = Extras(RoamingPaho("extras", self._ports))

    def _client(self, name: str) -> Roaming:
        return RoamingPaho(name, self._ports)

    def stop(self) -> str:
        """Raises AssertionError with what must not be; what was done."""
        self.extras.stop()
        self.publishers.stop()
        expected = self.publishers.expected()
        until(
            lambda: all(not lacks(each, expected) for each in self.readers),
            GOES_ON_MAX_S, "the last of each name at each reader",
        )  # fmt: skip
        at_qos_1 = {(name, each) for name in expected if name[-1] == "1" for each in expected[name]}
        shared = set[tuple[str, str]]()

        def missed() -> int:
            shared.update(*(tuple(each.received) for each in self.members))
            return len(at_qos_1 - shared)

        # A group may miss what a node hears more than a second before or after the others, as one
        # that starts on a busy machine may (docs/decisions/0038).
        most = len(at_qos_1) // 200
        until(lambda: missed() <= most, GOES_ON_MAX_S, "QoS 1 at members of the shared group")
        given = {each.name: by_name(each.received) for each in self.readers}
        wrong = problems({"stored": stored(self._cluster, "devices"), **given}, expected)
        for each in self.readers:
            wrong += self.extras.problems(each)
        wrong += self._retained_elsewhere()
        for each in (*self.readers, *self.members, *self.publishers.clients, self.extras.client):
            each.close()
        assert wrong == []
        return (
            f"{self.publishers.sent} publishes of each device, {self.extras.sent} of QoS 0; the "
            f"shared group missed {missed()} of {len(at_qos_1)}"
        )

    def _retained_elsewhere(self) -> list[str]:
        """What a node has retained that it should not have."""
        wrong = []
        for node in self._cluster.names:
            found: dict[str, str] = {}
            client = paho.Client(paho.CallbackAPIVersion.VERSION2, f"looks-{node}")
            client.on_message = lambda _c, _u, message, found=found: found.update(
                {message.topic: message.payload.decode()}
            )
            client.on_connect = lambda each, *_: each.subscribe("kept/#", 1)
            host, _, port = self._cluster.address(node, "mqtt").rpartition(":")
            client.connect(host, int(port))
            client.loop_start()
            deadline = time.monotonic() + GOES_ON_MAX_S
            while found != self.extras.kept and time.monotonic() < deadline:
                time.sleep(0.1)
            client.disconnect()
            client.loop_stop()
            if found != self.extras.kept:
                wrong.append(f"{node} has retained {found}, not {self.extras.kept}")
        return wrong


class Extras:
    """A client that publishes at QoS 0, and retained messages."""

    def __init__(self, client: RoamingPaho) -> None:
        self.client = client
        self.sent = 0
        """Of QoS 0."""
        self.kept: dict[str, str] = {}
        """The last payload of each retained name."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def _publish(self) -> None:
        while not self._stopping.wait(0.05):
            self.client.publish("m/extras/0", str(self.sent), 0)
            self.sent += 1
            name = f"kept/{self.sent % KEPT}"
            self.kept[name] = str(self.sent)
            self.client.publish(name, self.kept[name], 1, retain=True)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(10)

    def problems(self, reader: Roaming) -> list[str]:
        """QoS 0 comes at most once, and in order."""
        came = [int(value) for topic, value in reader.received if topic == "m/extras/0"]
        rising = all(one < other for one, other in zip(came, came[1:], strict=False))
        return [] if came and rising else [f"{reader.name}: of QoS 0 came {came}"]


class Whole:
    """All of the load."""

    def __init__(self, cluster: Cluster, client: lakemq.SyncClient) -> None:
        self._cluster, self._client = cluster, client
        names = ("records", "grouped", "jobs", "moved", "later")
        records, grouped, jobs, moved, later = (
            made(cluster, name, PARTITIONS) for name in names
        )  # fmt: skip
        self.load = Load(cluster, records, 2, rack=cluster.names[-1])
        self.load.start()
        self.senders = [Sender(client, name, PARTITIONS) for name in (grouped, jobs)]
        self.members = Readers(cluster, grouped, "readers")
        self.offsets = Offsets(client, "readers")
        self.consumers = Consumers(cluster, jobs, made(cluster, "dead", 2), "workers")
        self.transactions = Transactions(cluster, moved, PARTITIONS)
        self.scheduling = Scheduling(cluster, later, PARTITIONS)
        self.devices = Devices(cluster)

    def until_it_goes_on(self) -> None:
        """All of it has gone on."""
        self.load.until_each_acked(50, GOES_ON_MAX_S)
        self.members.until_committed(10, GOES_ON_MAX_S)
        self.offsets.look()
        self.consumers.until_settled(10, GOES_ON_MAX_S)
        self.transactions.until_committed(2, GOES_ON_MAX_S)
        self.scheduling.until_sent(10, GOES_ON_MAX_S)
        self.devices.publishers.until_acknowledged(20)

    def stop(self) -> list[str]:
        """Raises AssertionError with what must not be; what was done, a line each."""
        for sender in self.senders:
            sender.stop()
        self.load.stop()
        self._cluster.assert_no_loss()
        done = [f"{self._cluster.history.acks} records acknowledged"]
        ends = self._ends("grouped")
        until(lambda: self.offsets.look() == ends, GOES_ON_MAX_S, "all committed")
        self.members.stop()
        assert self.members.seen >= {(at, n) for at, end in ends.items() for n in range(end)}
        done.append(f"{sum(ends.values())} records read by the group")
        until(lambda: backlog(self._client, "workers", "jobs") == 0, GOES_ON_MAX_S, "all settled")
        self.consumers.stop()
        done.append(self.consumers.judge(self._client, self._ends("jobs")))
        self.transactions.stop()
        done.append(f"{self.transactions.judge()} records of transactions")
        self.scheduling.stop()
        done.append(self.scheduling.judge(self._client))
        done.append(self.devices.stop())
        return done

    def _ends(self, topic: str) -> dict[int, int]:
        described = self._client.describe_topic(topic)
        return {each.partition: each.high_watermark for each in described.partitions}


def leads_most(cluster: Cluster) -> str:
    async def count(client: RemoteClient) -> Counter[str | None]:
        _, topics = await client.topics()
        return Counter(each.leader for topic in topics for each in topic.partitions)

    return max(cluster.names, key=ask(cluster, count).__getitem__)


def test_a_rolling_restart_under_the_whole_load_loses_nothing(cluster: Cluster) -> None:
    with cluster.client(timeout_s=100) as client:
        whole = Whole(cluster, client)
        until_all_in_sync(cluster)
        whole.until_it_goes_on()
        for name in (leads_most(cluster),) if ROUNDS < 2 else cluster.names * 2:
            whole.load.begin_gap()
            began = time.monotonic()
            assert cluster.terminate(name) == 0
            whole.until_it_goes_on()
            cluster.start_node(name)
            until_all_in_sync(cluster)
            whole.until_it_goes_on()
            print(
                f"{name}: {time.monotonic() - began:.1f} s, {whole.load.gap_max_s:.2f} s of them "
                "at most without an ack"
            )
        print(*whole.stop(), sep="\n")
