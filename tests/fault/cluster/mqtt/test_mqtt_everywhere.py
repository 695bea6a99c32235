"""Goal: what holds for MQTT clients of one node of a cluster holds on all of them: bans, and ends
of connections, also when the node that wrote them dies.

With `LAKEMQ_FAULT_ROUNDS=2` each node dies once under retained messages, by default one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import paho.mqtt.client as paho
import pytest
from paho.mqtt.reasoncodes import ReasonCode
from typer.testing import CliRunner

from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.plugins.mqtt.ops.commands import mqtt
from lakemq.testing.cluster import Cluster
from tests.support.cluster.topics import ask, made, until_in_sync

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
ROUNDS = int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1"))
NAMES = ("n1", "n2", "n3")
WAIT_S = 120
"""On a busy machine."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("everywhere")) as found:
        until(lambda: "__mqtt_homes" in topics(found))
        for name in ("__mqtt_homes", "__mqtt_bans", "__mqtt_retained"):
            until_in_sync(found, name)
        made(found, "mqtt")
        yield found


def topics(cluster: Cluster) -> set[str]:
    async def names(client: RemoteClient) -> set[str]:
        return {topic.name for topic in (await client.topics())[1]}

    return ask(cluster, names)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def run(cluster: Cluster, node: str, *arguments: str) -> str:
    result = CliRunner().invoke(mqtt, [*arguments, "--admin", cluster.address(node, "admin")])
    assert result.exit_code == 0, result.output
    return result.stdout


class Client:
    """One that stays away when it was sent away."""

    def __init__(self, cluster: Cluster, node: str, client_id: str) -> None:
        self.refused: bool | None = None
        self.ended = False
        self.paho = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id, reconnect_on_failure=False
        )
        self.paho.on_connect = lambda _c, _u, _f, code, _p: self._connected(code)
        self.paho.on_disconnect = self._left
        host, _, port = cluster.address(node, "mqtt").rpartition(":")
        self.paho.connect(host, int(port))
        self.paho.loop_start()
        until(lambda: self.refused is not None)

    def _connected(self, code: ReasonCode) -> None:
        self.refused = code.is_failure

    def _left(self, *_: object) -> None:
        self.ended = True

    def close(self) -> None:
        self.paho.disconnect()
        with suppress(AttributeError):  # paho's thread may forget itself at that moment
            self.paho.loop_stop()


def refused(cluster: Cluster, node: str, client_id: str) -> bool:
    client = Client(cluster, node, client_id)
    client.close()
    return bool(client.refused)


def test_a_ban_holds_on_every_node_and_outlasts_the_one_that_made_it(cluster: Cluster) -> None:
    clients = [Client(cluster, node, f"noisy-{node}") for node in NAMES]
    others = [Client(cluster, node, f"calm-{node}") for node in NAMES]
    for made_at, name in zip(("n2", "n3", "n1"), NAMES, strict=True):
        run(cluster, made_at, "ban", "client_id", f"noisy-{name}")
    until(lambda: all(each.ended for each in clients))
    assert not any(each.ended for each in others)
    bans = json.loads(run(cluster, "n1", "bans", "--json"))
    assert sorted(one["value"] for one in bans) == [f"noisy-{node}" for node in NAMES]
    until_in_sync(cluster, "__mqtt_bans")
    cluster.kill("n1")
    for node in ("n2", "n3"):
        assert refused(cluster, node, "noisy-n1")
        run(cluster, node, "ban", "client_id", f"late-{node}")
    cluster.start_node("n1")
    for name in ("noisy-n2", "late-n2", "late-n3"):
        assert refused(cluster, "n1", name)
    run(cluster, "n3", "unban", "client_id", "noisy-n1")
    for node in NAMES:
        until(lambda node=node: not refused(cluster, node, "noisy-n1"))  # type: ignore[misc]
    for each in clients + others:
        each.close()


def test_a_client_is_sent_away_from_whichever_node_it_is_on(cluster: Cluster) -> None:
    for node in NAMES:
        client = Client(cluster, node, f"on-{node}")
        assert run(cluster, "n2", "kick", f"on-{node}", "--session") == (
            "disconnected\nsession ended\n"
        )
        until(lambda: client.ended)  # noqa: B023
        client.close()
    missing = CliRunner().invoke(
        mqtt, ["kick", "nobody", "--admin", cluster.address("n1", "admin")]
    )
    assert missing.exit_code == 4


def retained(cluster: Cluster, node: str, topic_filter: str) -> dict[str, bytes]:
    """What a client that subscribes at the node is sent at once."""
    client = Client(cluster, node, f"reads-{node}-{time.monotonic_ns()}")
    found: dict[str, bytes] = {}
    client.paho.on_message = lambda _c, _u, message: found.update(
        {message.topic: message.payload} if message.retain else {}
    )
    client.paho.subscribe(topic_filter, 1)
    time.sleep(0.5)
    client.close()
    return found


def publish(cluster: Cluster, node: str, messages: dict[str, bytes], qos: int = 1) -> None:
    client = Client(cluster, node, f"writes-{node}-{time.monotonic_ns()}")
    infos = [client.paho.publish(*each, qos, retain=True) for each in messages.items()]
    for info in infos:
        info.wait_for_publish(WAIT_S)
    client.close()


@pytest.mark.parametrize("qos", [1, 0], ids=["bound", "unbound"])
def test_retained_messages_are_sent_by_every_node(cluster: Cluster, qos: int) -> None:
    until_in_sync(cluster, "__mqtt_retained")
    prefix = f"kept/{qos}"
    expected: dict[str, bytes] = {}
    for node in NAMES:
        mine = {f"{prefix}/{node}/{number}": node.encode() for number in range(20)}
        publish(cluster, node, mine, qos)
        expected |= mine
    for node in NAMES:
        until(lambda node=node: retained(cluster, node, f"{prefix}/#") == expected)  # type: ignore[misc]
    changed = {name: b"new" for name in list(expected)[::3]}
    cleared = dict.fromkeys(list(expected)[1::3], b"")
    publish(cluster, "n3", changed, qos)
    publish(cluster, "n1", cleared, qos)
    expected = {
        name: payload for name, payload in (expected | changed | cleared).items() if payload
    }
    for node in NAMES:
        until(lambda node=node: retained(cluster, node, f"{prefix}/#") == expected)  # type: ignore[misc]


def test_retained_messages_outlast_any_node_and_are_read_by_one_that_starts(
    cluster: Cluster,
) -> None:
    until_in_sync(cluster, "__mqtt_retained")
    expected: dict[str, bytes] = {}
    for victim in NAMES if ROUNDS > 1 else NAMES[:1]:
        others = [node for node in NAMES if node != victim]
        more = {f"last/{victim}/{number}": b"%d" % number for number in range(30)}
        publish(cluster, others[0], more, 0)
        expected |= more
        until(lambda: retained(cluster, others[1], "last/#") == expected)  # noqa: B023
        cluster.kill(victim)
        late = {f"last/late-{victim}/{number}": b"late" for number in range(5)}
        publish(cluster, others[0], late, 0)
        expected |= late
        until(lambda: retained(cluster, others[1], "last/#") == expected)  # noqa: B023
        cluster.start_node(victim)
        until(lambda: retained(cluster, victim, "last/#") == expected)  # noqa: B023
        until_in_sync(cluster, "__mqtt_retained")
