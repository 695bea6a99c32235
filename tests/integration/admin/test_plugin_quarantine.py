"""Goal: on a real node an interceptor changes and refuses what the SDK writes, in whatever way; one
that goes on failing is quarantined, is shown, and comes back, by hand and by itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest

import lakemq
from lakemq.broker_core.api.errors import InterceptorFailed, InvalidRequest, LakeMQError
from lakemq.broker_core.api.types import Columns
from tests.support.cluster.load import until
from tests.support.node.admin_api import ask
from tests.support.node.node import PORTS_FREE, NodeProcess, unique
from tests.support.node.plugins import plugin_path

PLUGIN = """
from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.hooks import hookimpl

class Upper:
    def takes_batches(self, topic):
        return topic.startswith("upper")

    def intercept(self, topic, columns, principal):
        if b"bad" in columns.values:
            raise KeyError("unit")
        if b"no" in columns.values:
            raise InvalidRequest("a reading has a unit")
        return columns._replace(values=[value and value.upper() for value in columns.values])

@hookimpl
def register_interceptors(context):
    return [Upper()]
"""
CONFIG = (
    PORTS_FREE
    + """
[interceptors]
failures_max = 3
cool_down_ms = 600000
[plugins.upper]
"""
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("quarantine")
    with NodeProcess(
        folder / "node", CONFIG, plugin_path(folder / "plugin", "upper", PLUGIN)
    ) as it:
        yield it


@pytest.fixture(scope="module")
def client(node: NodeProcess) -> Iterator[lakemq.SyncClient]:
    with lakemq.connect(node.native) as client:
        yield client


def stored(client: lakemq.SyncClient, topic: str) -> list[bytes | None]:
    return [record.value for record in client.consume(topic)]


def quarantines(node: NodeProcess) -> list[dict[str, object]]:
    (row,) = [each for each in ask(node, "GET", "plugins").data if each["name"] == "upper"]
    found: list[dict[str, object]] = row["quarantines"]
    return found


def metric(node: NodeProcess, name: str) -> str:
    lines = ask(node, "GET", "/metrics").body.splitlines()
    (found,) = [each for each in lines if each.startswith(name) and 'plugin="upper"' in each]
    return found.rpartition(" ")[2]


def fail_three_times(client: lakemq.SyncClient, topic: str) -> None:
    for _ in range(3):
        with pytest.raises(InterceptorFailed, match="plugin upper: its interceptor failed: KeyErr"):
            client.send(topic, b"bad")


def run(node: NodeProcess, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lakemq", *command, "--admin", node.addresses["admin"]],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_what_the_sdk_writes_is_changed_or_refused(
    node: NodeProcess, client: lakemq.SyncClient
) -> None:
    seen, unseen = unique("upper"), unique("plain")
    for topic in (seen, unseen):
        client.create_topic(topic)
        with client.producer(compression="zstd") as producer:
            producer.send_batch(topic, Columns([b"v%d" % number for number in range(3000)]))
        with (
            client.transactional_producer(f"copy-{topic}") as producer,
            producer.transaction() as transaction,
        ):
            transaction.send(topic, b"staged")
    assert stored(client, unseen) == [b"v%d" % n for n in range(3000)] + [b"staged"]
    until(lambda: len(stored(client, seen)) == 3001)
    assert stored(client, seen) == [b"V%d" % n for n in range(3000)] + [b"STAGED"]
    client.schedules.send(seen, b"later", delay=timedelta(milliseconds=50))
    until(lambda: stored(client, seen)[-1] == b"LATER")
    with pytest.raises(InvalidRequest, match="^a reading has a unit$"):
        client.send(seen, b"no")
    with pytest.raises(InvalidRequest, match="a reading has a unit"):
        client.schedules.send(seen, b"no", delay=timedelta(minutes=1))
    with (
        client.transactional_producer(f"refused-{seen}") as producer,
        pytest.raises(LakeMQError, match="a reading has a unit"),
        producer.transaction() as transaction,
    ):
        transaction.send(seen, b"no")
    client.send(seen, b"on")
    assert stored(client, seen)[-2:] == [b"LATER", b"ON"]


def test_it_is_quarantined_shown_and_comes_back(
    node: NodeProcess, client: lakemq.SyncClient
) -> None:
    topic, other = unique("upper"), unique("upper")
    for name in (topic, other):
        client.create_topic(name)
    fail_three_times(client, topic)
    (found,) = quarantines(node)
    assert found["topic"] == topic and found["records"] == "refused"
    assert "KeyError: 'unit'" in str(found["reason"])
    until(lambda: metric(node, "lakemq_interceptors_quarantined{") == "1.0")
    assert metric(node, "lakemq_interceptors_quarantines_total") == "1.0"
    published = ask(node, "POST", f"topics/{topic}/records", {"records": [{"value": "x"}]})
    assert published.status == 503 and published.json["code"] == "UNAVAILABLE"
    assert f"its interceptor is quarantined for topic {topic}" in published.json["detail"]
    client.send(other, b"a")
    assert (stored(client, topic), stored(client, other)) == ([], [b"A"])

    tried = ask(node, "POST", "nodes/node-1/plugins/upper/resume?dry_run=true").json
    assert tried["ended"][0]["topic"] == topic and len(quarantines(node)) == 1
    assert ask(node, "POST", "nodes/node-1/plugins/none/resume").status == 404
    done = run(node, "plugin", "resume", "upper", "--json")
    assert done.returncode == 0, done.stderr
    assert [(each["node"], each["topic"]) for each in json.loads(done.stdout)] == [
        ("node-1", topic)
    ]
    assert quarantines(node) == []
    client.send(topic, b"b")
    assert stored(client, topic) == [b"B"]

    # By itself: the SDK goes on trying until the cool-down has passed.
    changed = ask(
        node, "PUT", "dynamic-settings/cluster/interceptors.cool_down_ms", {"value": 1000}
    )
    assert changed.status < 300, changed.body
    until(
        lambda: any(
            each["setting"] == "interceptors.cool_down_ms" and each["value"] == 1000
            for each in ask(node, "GET", "settings?q=interceptors").data
        )
    )
    fail_three_times(client, topic)
    client.send(topic, b"c")
    assert stored(client, topic) == [b"B", b"C"]
    assert quarantines(node) == []
    until(lambda: metric(node, "lakemq_interceptors_quarantined{") == "0.0")
    log = node.log_file.read_text()
    assert log.count("records are refused meanwhile, and it is tried again") == 2
    assert log.count("it is called again; before,") == 2
