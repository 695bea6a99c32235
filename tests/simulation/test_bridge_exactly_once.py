"""Goal: QoS 2 crosses a bridge exactly once, QoS 1 at least once, whatever ends when.

Method: the pure boxes, driven as `bridge.py` drives them, against a model of the remote broker
(MQTT 3.1.1, 4.3.3, method B), over a wire that loses everything under way at any moment; the
bridge's process ends at any moment and begins again from the last durable state. One seed decides.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from typing import Any

import pytest

from lakemq.plugins.mqtt.bridge.incoming.inbox import Answer, Arrival, Inbox
from lakemq.plugins.mqtt.bridge.outgoing.outbox import Forward, Outbox, PartitionCursor

RECORDS = 40


class Outwards:
    """A lane of records to a remote broker."""

    def __init__(self, seed: int, qos: int) -> None:
        self.random = random.Random(seed)
        self.qos = qos
        self.got: Counter[int] = Counter()
        self.remote_ids: set[int] = set()
        self.to_remote: list[tuple[str, int, int, bool]] = []
        self.to_us: list[tuple[str, int]] = []
        self.begin(
            {
                "lanes": [
                    {"topic": "t", "topic_id": "i", "partition": 0, "next": 0, "unfinished": []}
                ]
            }
        )

    def begin(self, kept: dict[str, Any]) -> None:
        self.kept = kept
        self.outbox = Outbox(5, 1000)
        self.outbox.load(copy.deepcopy(kept["lanes"]))
        self.connect()

    def keep(self) -> None:
        self.kept = {"lanes": copy.deepcopy(self.outbox.state())}

    def forward(self, offset: int) -> Forward:
        return Forward("n", b"%d" % offset, self.qos, False)

    def connect(self) -> None:
        self.to_remote, self.to_us = [], []
        self.releases: list[int] = []
        if self.outbox.restart(session_present=True):
            for one in list(self.outbox.all_unfinished()):
                if one.forward is None and not one.received:
                    self.outbox.restore(one, self.forward(one.offset))
        self.keep()
        for one in self.outbox.all_unfinished():
            kind = "pubrel" if one.received else "publish"
            self.to_remote.append((kind, one.packet_id, one.offset, one.resent))

    def pump(self) -> None:
        cursor: PartitionCursor = self.outbox.cursors["t", 0]
        taken = []
        while self.outbox.room and cursor.next_offset < RECORDS:
            offset = cursor.next_offset
            taken.append(self.outbox.take(cursor, offset, self.forward(offset), 0))
        releases, self.releases = self.releases, []
        if releases or (self.qos == 2 and taken):
            self.keep()
            if self.random.random() < 0.1:  # the process ends between the two
                self.begin(self.kept)
                return
        self.to_remote += [("publish", one.packet_id, one.offset, False) for one in taken]
        self.to_remote += [("pubrel", packet_id, 0, False) for packet_id in releases]

    def remote(self) -> None:
        if not self.to_remote:
            return
        kind, packet_id, offset, _again = self.to_remote.pop(0)
        if kind == "pubrel":
            self.remote_ids.discard(packet_id)
            self.to_us.append(("pubcomp", packet_id))
        elif self.qos == 1:
            self.got[offset] += 1
            self.to_us.append(("puback", packet_id))
        else:
            if packet_id not in self.remote_ids:
                self.remote_ids.add(packet_id)
                self.got[offset] += 1
            self.to_us.append(("pubrec", packet_id))

    def us(self) -> None:
        if not self.to_us:
            return
        kind, packet_id = self.to_us.pop(0)
        if kind == "puback":
            self.outbox.acked(packet_id)
        elif kind == "pubrec":
            if self.outbox.received(packet_id, 0):
                self.releases.append(packet_id)
        else:
            self.outbox.completed(packet_id)

    def run(self) -> None:
        steps = [self.pump, self.remote, self.us]
        weights = [4.0, 6.0, 6.0, 0.3, 0.3, 0.5]
        for number in range(20_000):
            calm = number > 2000
            doings = [*steps, self.connect, lambda: self.begin(self.kept), self.keep]
            act = self.random.choices(doings, [*weights[:3], 0, 0, 1] if calm else weights)[0]
            act()
            if calm and not len(self.outbox) and self.outbox.cursors["t", 0].next_offset == RECORDS:
                return
        raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("seed", range(60))
def test_outwards(seed: int, qos: int) -> None:
    one = Outwards(seed, qos)
    one.run()
    assert set(one.got) == set(range(RECORDS)), f"seed {seed}: lost"
    if qos == 2:
        assert set(one.got.values()) == {1}, f"seed {seed}: repeated"


class Inwards:
    """Publishes of a remote broker to our journal."""

    def __init__(self, seed: int, qos: int) -> None:
        self.random = random.Random(seed)
        self.qos = qos
        self.log: list[tuple[int, int]] = []
        """Our journal: (packet identifier, number)."""
        self.waiting = list(range(RECORDS))
        self.remote: dict[int, tuple[str, int]] = {}
        """The remote broker's session: packet identifier -> what it waits for, number."""
        self.last_id = 0
        self.begin({"unreleased": [], "positions": [["t", 0, 0]]})

    def begin(self, kept: dict[str, Any]) -> None:
        """The process begins: what was stored after the state was kept is found by reading."""
        self.kept = kept
        self.inbox = Inbox(1000)
        self.inbox.load(copy.deepcopy(kept))
        if self.qos == 2:
            self.inbox.unreleased |= {i for i, _ in self.log[self.inbox.positions["t", 0] :]}
            self.inbox.positions["t", 0] = len(self.log)
        self.storing: list[tuple[Arrival, int, int]] = []
        self.keep()
        self.connect()

    def keep(self) -> None:
        self.kept = copy.deepcopy(self.inbox.state())

    def connect(self) -> None:
        while self.storing:  # a new link waits for what the last one left
            self.store()
        self.inbox.link_lost()
        self.to_us = [
            ("publish" if waits in ("puback", "pubrec") else "pubrel", packet_id, number, True)
            for packet_id, (waits, number) in self.remote.items()
        ]
        self.to_remote: list[tuple[str, int]] = []
        self.completions: list[int] = []

    def send(self) -> None:
        if self.waiting and len(self.remote) < 5:
            number = self.waiting.pop(0)
            self.last_id = self.last_id % 8 + 1
            while self.last_id in self.remote:
                self.last_id = self.last_id % 8 + 1
            self.remote[self.last_id] = ("puback" if self.qos == 1 else "pubrec", number)
            self.to_us.append(("publish", self.last_id, number, False))

    def us(self) -> None:
        if not self.to_us:
            return
        kind, packet_id, number, again = self.to_us.pop(0)
        if kind == "pubrel":
            self.inbox.released(packet_id)
            self.completions.append(packet_id)
            return
        answer = Answer(self.qos, packet_id)
        if self.inbox.seen(answer, again=again):
            if packet_id in self.inbox.unreleased:
                self.to_remote.append(("pubrec", packet_id))
            return
        self.storing.append((self.inbox.arrived(answer, 1), packet_id, number))

    def store(self) -> None:
        """The oldest append becomes durable; its answer may come too late for the process."""
        if not self.storing:
            return
        arrival, packet_id, number = self.storing.pop(0)
        self.log.append((packet_id, number))
        if self.random.random() < 0.05:
            self.begin(self.kept)
            return
        for answer in self.inbox.settled(arrival, ("t", 0, len(self.log) - 1)):
            kind = "puback" if answer.qos == 1 else "pubrec"
            self.to_remote.append((kind, answer.packet_id))

    def pump(self) -> None:
        completions, self.completions = self.completions, []
        if completions:
            self.keep()
            if self.random.random() < 0.1:
                self.begin(self.kept)
                return
        self.to_remote += [("pubcomp", packet_id) for packet_id in completions]

    def hear(self) -> None:
        if not self.to_remote:
            return
        kind, packet_id = self.to_remote.pop(0)
        waits = self.remote.get(packet_id)
        if waits is None or waits[0] != kind:
            return
        if kind == "pubrec":
            self.remote[packet_id] = ("pubcomp", waits[1])
            self.to_us.append(("pubrel", packet_id, 0, False))
        else:
            del self.remote[packet_id]

    def run(self) -> None:
        for number in range(20_000):
            calm = number > 2000
            breaks = [] if calm else [self.connect, lambda: self.begin(self.kept)]
            doings = [self.send, self.us, self.store, self.pump, self.hear, self.keep, *breaks]
            weights = [4, 6, 6, 4, 6, 0.5, *([0.3] * len(breaks))]
            self.random.choices(doings, weights)[0]()
            if calm and not self.waiting and not self.remote and not self.storing:
                return
        raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("seed", range(60))
def test_inwards(seed: int, qos: int) -> None:
    one = Inwards(seed, qos)
    one.run()
    got = Counter(number for _, number in one.log)
    assert set(got) == set(range(RECORDS)), f"seed {seed}: lost"
    if qos == 2:
        assert set(got.values()) == {1}, f"seed {seed}: repeated"
