"""Publishers that roam, and what must hold of what they publish."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence

import lakemq
from lakemq.testing import Cluster
from tests.support.mqtt.roaming import Roaming

WAIT_S = 120
LAST = "last"
GAP_S = 0.01
UNANSWERED_MAX = 300
"""Publishes of one client, before none sends any more."""


class Publishers:
    """Clients that publish numbers at QoS 1 and at QoS 2 in turns."""

    def __init__(self, clients: Sequence[Roaming], prefix: str) -> None:
        """They publish to names below `prefix`."""
        self.clients = clients
        self._prefix = prefix
        self.sent = 0
        """Of each client, to both of its topic names together."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def _publish(self) -> None:
        while not self._stopping.wait(GAP_S):
            if self.sent - min(each.acknowledged for each in self.clients) > UNANSWERED_MAX:
                continue
            number, qos = self.sent // 2, 1 + self.sent % 2
            for client in self.clients:
                client.publish(self.name(client, qos), str(number), qos)
            self.sent += 1

    def until_acknowledged(self, more: int) -> None:
        """So many more of each."""
        self._until(self.sent + more)

    def _until(self, goal: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while min(each.acknowledged for each in self.clients) < goal:
            assert time.monotonic() < deadline, f"{self.sent} of each are sent; {self.waiting()}"
            time.sleep(0.05)

    def stop(self) -> None:
        """Returns when all are acknowledged, the last ones of each name too."""
        self._stopping.set()
        self._thread.join(10)
        for client, qos in itertools.product(self.clients, (1, 2)):
            client.publish(self.name(client, qos), LAST, qos)
        self._until(self.sent + 2)
        refused = {each.name: each.refused for each in self.clients if each.refused}
        assert not refused, refused

    def waiting(self) -> str:
        """What each of them waits for."""
        return "; ".join(
            f"{each.name} has {each.acknowledged} answers: {each.waiting()}"
            for each in self.clients
        )

    def name(self, client: Roaming, qos: int) -> str:
        """Of the topic to which it publishes at that QoS."""
        return f"{self._prefix}/{client.name}/{qos}"

    def expected(self) -> dict[str, list[str]]:
        return {
            self.name(client, qos): [
                *(str(n // 2) for n in range(self.sent) if 1 + n % 2 == qos), LAST
            ]
            for client in self.clients
            for qos in (1, 2)
        }  # fmt: skip


def by_name(found: list[tuple[str, str]]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for topic, value in found:
        values.setdefault(topic, []).append(value)
    return values


def stored(cluster: Cluster, topic: str) -> dict[str, list[str]]:
    """Payloads by topic name, in the order in which they are stored."""
    with lakemq.connect(cluster.bootstrap, timeout_s=WAIT_S) as client:
        found = [
            ((each.key or b"").decode(), (each.value or b"").decode())
            for each in client.consume(topic)
        ]
    return by_name(found)


def lacks(reader: Roaming, expected: Mapping[str, list[str]]) -> list[str]:
    """Names of which it was not given the last one."""
    found = {topic for topic, value in tuple(reader.received) if value == LAST}
    return sorted(expected.keys() - found)


def problems(seen: dict[str, dict[str, list[str]]], expected: dict[str, list[str]]) -> list[str]:
    """`seen`: where -> topic name -> payloads, as they came."""
    wrong = []
    for (where, found), (topic, values) in itertools.product(seen.items(), expected.items()):
        got = found.get(topic, [])
        # At QoS 1 some may come again, behind what came first.
        if topic.endswith("/1"):
            got = list(dict.fromkeys(got))
        if got != values:
            pairs = enumerate(zip(got, values, strict=False))
            at = next((n for n, (one, other) in pairs if one != other), len(values))
            missing, more = set(values) - set(got), len(got) - len(set(got))
            wrong.append(
                f"{where}: {topic}: {len(missing)} missing ({sorted(missing)[:5]}), {more} again; "
                f"first at {at}: {got[max(0, at - 3) : at + 5]}"
            )
    return wrong
