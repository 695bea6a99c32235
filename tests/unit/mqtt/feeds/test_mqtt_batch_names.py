"""Goal: what no subscriber wants is left out by looking at distinct keys and headers alone, and it
is the same as is left out record by record.

Method: seeded batches of valid, retained, QoS 2, malformed and native records.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from itertools import count

import pytest

from lakemq.broker_core.api.cluster.channels import Peer
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import Columns, CommittedBatch, Offset
from lakemq.plugins.mqtt.feeds.reading import Salvage
from lakemq.plugins.mqtt.interest.filtering import InterestFilter
from lakemq.plugins.mqtt.interest.frames import Kind, Said
from lakemq.plugins.mqtt.interest.hashes import Hasher
from lakemq.plugins.mqtt.interest.others import OthersInterest
from lakemq.plugins.mqtt.state.counters import Counters
from lakemq.plugins.mqtt.state.records import (
    RETAIN,
    TOPIC,
    Meta,
    RecordReader,
    client_header,
    qos_2_header,
)
from lakemq.plugins.mqtt.wire.messages import Message
from lakemq.plugins.mqtt.wire.topics import TopicNames
from tests.support.seeds import seeds

KEYS = (b"a", b"b/c", b"d/e/f", b"", b"bad/#", b"\xff", None)
PLAIN = (b"", client_header("c1"), client_header("c2"), encode_headers((("user", b"x"),)))
NAMED = (encode_headers(((TOPIC, b"g/h"),)), encode_headers(((TOPIC, b"bad/+"),)))
BROKEN = (b"\x05\x00",)
MATTERS = (encode_headers(((RETAIN, b"1"),)), client_header("c1") + qos_2_header("s", 7))
PEER = Peer("b", 1)


def batch_of(rng: random.Random, headers: tuple[bytes, ...]) -> CommittedBatch:
    keys = rng.choices(KEYS, k=rng.choice([1, 2, 9]))
    rows = [(rng.choice(keys), rng.choice(headers)) for _ in range(rng.randrange(1, 12))]
    columns = Columns([b"v"] * len(rows), [key for key, _ in rows], [head for _, head in rows])
    data, given = encode(columns, now_ms=1), None
    if rng.random() < 0.5:  # where it was published here
        given = columns._replace(timestamps_ms=[1] * len(rows))
    return CommittedBatch("mqtt", 0, Offset(0), data, given)


def told(rows: Iterable[tuple[Message, Meta]]) -> list[tuple[object, ...]]:
    return [(each.place, each.topic, each.payload, each.retain, meta) for each, meta in rows]


def reader() -> RecordReader:
    return RecordReader(TopicNames())


@pytest.mark.parametrize("seed", seeds(200))
def test_names_are_those_of_the_records(seed: int) -> None:
    rng = random.Random(seed)
    some = PLAIN + rng.choice([(), NAMED, BROKEN, MATTERS])
    batch = batch_of(rng, some)
    names, one_by_one = reader().names(batch), reader()
    read = list(one_by_one.read(batch))
    if any(message.retain or meta.marked for message, meta in read):
        assert names is None
        return
    if names is None:  # a record that matters has a key that nobody can read
        assert one_by_one.unreadable and some[-1] in MATTERS
        return
    topics = {message.topic for message, _ in read}
    assert topics <= names and (not one_by_one.unreadable or "" in names)
    if some[-1] not in NAMED + BROKEN:
        assert names - {""} == topics and ("" in names) == bool(one_by_one.unreadable)


@pytest.mark.parametrize("seed", seeds(200))
@pytest.mark.parametrize("subscribed", ["", "b/c", "a b/c d/e/f g/h"])
def test_a_batch_is_read_as_record_by_record(seed: int, subscribed: str) -> None:
    heard = set(subscribed.split()).__contains__
    rng = random.Random(seed)
    batch = batch_of(rng, PLAIN + rng.choice([(), NAMED, BROKEN, MATTERS]))
    salvage, whole, one_by_one = Salvage(Counters()), reader(), reader()
    assert told(salvage.messages(whole, batch, heard)) == told(one_by_one.read(batch, heard))
    assert whole.unreadable == one_by_one.unreadable


@pytest.mark.parametrize("heard", [True, False])
def test_a_corrupt_batch_is_counted_whether_or_not_anybody_listens(heard: bool) -> None:
    data = bytearray(batch_of(random.Random(1), PLAIN).data)
    data[-1] ^= 1
    counters = Counters()
    batch = CommittedBatch("mqtt", 0, Offset(0), bytes(data))
    assert list(Salvage(counters).messages(reader(), batch, lambda name: heard)) == []
    assert counters.batches_corrupt == 1


def test_another_node_gets_what_it_wants_and_what_matters() -> None:
    hasher, shared = Hasher("c"), reader()
    others = OthersInterest(hasher)
    others.begun(PEER)
    wanted = InterestFilter(others, shared, lambda topic: True)
    added, none, offsets = array("Q", [hasher("a")]), array("Q"), count()
    others.said(PEER, Said(Kind.WHOLE, 1, True, added, none, [], [], [], False))

    def wants(key: bytes, headers: bytes) -> bool:
        data = encode(Columns([b"v"], [key], [headers]), now_ms=1)
        return wanted.wants(PEER, 1, CommittedBatch("mqtt", 0, Offset(next(offsets)), data))

    assert wants(b"a", client_header("c1"))
    assert not wants(b"b/c", client_header("c1"))
    assert wants(b"b/c", MATTERS[0]) and wants(b"b/c", MATTERS[1])
    assert wants(b"x", encode_headers(((TOPIC, b"a"),)))
    assert not wants(b"bad/#", b"") and not wants(b"x", BROKEN[0])
    others.said(PEER, Said(Kind.WHOLE, 1, True, none, none, ["#"], [], [], False))
    assert wants(b"b/c", b"") and not wants(b"bad/#", b"") and not wants(b"x", BROKEN[0])
    assert shared.unreadable == 0, "the node that delivers it counts it"
