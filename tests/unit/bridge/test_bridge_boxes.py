"""Goal: outbox and inbox keep what they must, bounded, and answer in order."""

from __future__ import annotations

import json

import pytest

from lakemq.broker_core.api.records.batch import RecordBatch, encode
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.mqtt.bridge.incoming.inbox import Answer, Inbox
from lakemq.plugins.mqtt.bridge.outgoing.outbox import PACKET_IDS, Forward, Outbox, PartitionCursor
from lakemq.plugins.mqtt.bridge.records import (
    BridgeRecordReader,
    incoming_headers,
    is_echo,
    packet_id_of,
)


def cursor(outbox: Outbox, next_offset: int = 0) -> PartitionCursor:
    one = PartitionCursor("mqtt", "id", 0, next_offset)
    outbox.cursors["mqtt", 0] = one
    return one


def test_room_is_bounded_by_count_and_bytes() -> None:
    outbox = Outbox(2, 100)
    mine = cursor(outbox)
    outbox.take(mine, 0, Forward("a", b"x", 1, False), 0)
    assert outbox.room == 1
    outbox.take(mine, 1, Forward("a", b"x" * 99, 1, False), 0)
    assert outbox.room == 0
    small = Outbox(10, 100)
    small.take(cursor(small), 0, Forward("a", b"x" * 100, 2, False), 0)
    assert small.room == 0
    assert small.received(1, 0)
    assert small.room == 9, "what the remote broker has needs no bytes here"


def test_qos_0_is_done_when_it_is_sent() -> None:
    outbox = Outbox(10, 100)
    mine = cursor(outbox)
    outbox.take(mine, 5, Forward("a", b"x", 0, False), 0)
    assert (len(outbox), mine.begin_offset, outbox.sent) == (0, 6, 1)


def test_the_oldest_unfinished_record_holds_the_beginning_back() -> None:
    outbox = Outbox(10, 100)
    mine = cursor(outbox)
    ids = [outbox.take(mine, n, Forward("a", b"", 1, False), n).packet_id for n in range(3)]
    assert outbox.acked(ids[1])
    assert mine.begin_offset == 0
    assert outbox.oldest_ms() == 0
    assert outbox.acked(ids[0])
    assert mine.begin_offset == 2
    assert not outbox.acked(ids[0]), "nobody waits for it"


def test_packet_identifiers_in_use_are_left_out() -> None:
    outbox = Outbox(PACKET_IDS, 1 << 30)
    mine = cursor(outbox)
    first = outbox.take(mine, 0, Forward("a", b"", 2, False), 0).packet_id
    for number in range(1, PACKET_IDS + 5):
        packet_id = outbox.take(mine, number, Forward("a", b"", 1, False), 0).packet_id
        assert packet_id != first
        assert outbox.acked(packet_id)
    used = {one.packet_id for one in outbox.all_unfinished()}
    assert used == {first}
    assert outbox.take(mine, 99_999, Forward("a", b"", 1, False), 0).packet_id != first


def test_a_publish_that_is_read_again_keeps_its_quality() -> None:
    """Whatever the rules have become: the remote broker knows it by its packet identifier."""
    outbox = Outbox(10, 1000)
    one = outbox.take(cursor(outbox), 0, Forward("a", b"x", 2, False), 0)
    one.forward = None
    outbox.restore(one, Forward("a", b"x", 0, False))
    assert one.forward == Forward("a", b"x", 2, False)


def test_what_was_received_is_to_be_kept() -> None:
    outbox = Outbox(10, 1000)
    one = outbox.take(cursor(outbox), 0, Forward("a", b"x", 2, False), 0)
    outbox.state()
    assert outbox.received(one.packet_id, 1) and outbox.changed
    assert outbox.state()[0]["unfinished"] == [[0, one.packet_id, 1]] and not outbox.changed


def test_answers_of_the_wrong_kind_change_nothing() -> None:
    outbox = Outbox(10, 100)
    mine = cursor(outbox)
    twice = outbox.take(mine, 0, Forward("a", b"", 2, False), 0).packet_id
    once = outbox.take(mine, 1, Forward("a", b"", 1, False), 0).packet_id
    assert not outbox.acked(twice)
    assert not outbox.received(once, 0)
    assert not outbox.completed(twice), "PUBCOMP before PUBREC"
    assert len(outbox) == 2


def test_the_state_is_json_and_comes_back() -> None:
    outbox = Outbox(10, 100)
    mine = cursor(outbox)
    one = outbox.take(mine, 0, Forward("a", b"", 2, False), 0)
    outbox.take(mine, 1, Forward("a", b"", 2, False), 0)
    outbox.take(mine, 2, Forward("a", b"", 1, False), 0)
    assert outbox.received(one.packet_id, 0)
    state = json.loads(json.dumps(outbox.state()))
    assert not outbox.changed
    again = Outbox(10, 100)
    again.load(state)
    assert again.state() == state
    assert again.restart(session_present=True), "records must be read again"
    assert [(x.offset, x.exactly_once, x.received, x.resent) for x in again.all_unfinished()] == [
        (0, True, True, True),
        (1, True, False, True),
        (2, False, False, True),
    ]


def test_a_session_that_is_forgotten_makes_received_publishes_new() -> None:
    outbox = Outbox(10, 100)
    one = outbox.take(cursor(outbox), 0, Forward("a", b"x", 2, False), 0)
    outbox.received(one.packet_id, 0)
    assert outbox.restart(session_present=False)
    assert (one.received, one.resent) == (False, False)


def test_only_releases_sent_again_are_given_up() -> None:
    outbox = Outbox(10, 100)
    mine = cursor(outbox)
    one = outbox.take(mine, 0, Forward("a", b"", 2, False), 0)
    other = outbox.take(mine, 1, Forward("a", b"", 2, False), 0)
    outbox.received(one.packet_id, 0)
    outbox.give_up_releases(1000)
    assert len(outbox) == 2
    outbox.restart(session_present=True)
    outbox.give_up_releases(1000)
    assert list(outbox.all_unfinished()) == [other]


def test_a_partition_that_is_gone_gives_up_what_was_under_way() -> None:
    outbox = Outbox(10, 100)
    mine = cursor(outbox)
    outbox.take(mine, 0, Forward("a", b"x", 2, False), 0)
    assert outbox.drop(mine) == 1
    assert (len(outbox), outbox.size_bytes, outbox.sent) == (0, 0, 0)


# -- inbox


def test_answers_leave_in_the_order_of_arrival() -> None:
    inbox = Inbox(1000)
    one, two = inbox.arrived(Answer(1, 7), 10), inbox.arrived(Answer(2, 8), 10)
    none = inbox.arrived(Answer(0, 0), 10)
    assert inbox.settled(two, ("mqtt", 0, 1)) == []
    assert inbox.settled(none, ("mqtt", 0, 2)) == []
    assert inbox.settled(one, ("mqtt", 0, 0)) == [Answer(1, 7), Answer(2, 8)]
    assert inbox.idle
    assert inbox.received == 3


def test_answers_of_a_lost_link_are_not_given_on_the_next() -> None:
    inbox = Inbox(1000)
    slow, waits = (inbox.arrived(Answer(number, 1), 1) for number in (1, 2))
    assert inbox.settled(waits, ("t", 0, 1)) == []
    inbox.link_lost()
    fresh = inbox.arrived(Answer(3, 1), 1)
    assert inbox.settled(fresh, ("t", 0, 2)) == [Answer(3, 1)]
    assert inbox.settled(slow, ("t", 0, 0)) == [] and inbox.idle


def test_a_publish_that_failed_is_not_answered_and_comes_again() -> None:
    inbox = Inbox(1000)
    one, two = inbox.arrived(Answer(2, 7), 10), inbox.arrived(Answer(1, 8), 10)
    inbox.failed(one)
    assert inbox.settled(two, None) == [Answer(1, 8)]
    assert not inbox.seen(Answer(2, 7), again=True)
    assert inbox.idle


def test_qos_2_is_known_until_it_is_released() -> None:
    inbox = Inbox(1000)
    one = inbox.arrived(Answer(2, 7), 10)
    assert inbox.seen(Answer(2, 7), again=True), "it is being stored"
    inbox.settled(one, ("mqtt", 0, 0))
    assert inbox.seen(Answer(2, 7), again=True)
    assert not inbox.seen(Answer(2, 7), again=False), "without DUP it is a new one"
    assert not inbox.seen(Answer(1, 7), again=True), "QoS 1 may repeat"
    inbox.released(7)
    assert inbox.changed
    assert not inbox.seen(Answer(2, 7), again=True)
    assert inbox.repeated == 2


def test_what_is_being_stored_is_bounded() -> None:
    inbox = Inbox(100)
    one = inbox.arrived(Answer(1, 1), 100)
    assert inbox.full
    inbox.settled(one, None)
    assert not inbox.full


def test_the_inbox_comes_back_from_its_state() -> None:
    inbox = Inbox(1000)
    inbox.settled(inbox.arrived(Answer(2, 7), 10), ("mqtt", 3, 41))
    state = json.loads(json.dumps(inbox.state()))
    again = Inbox(1000)
    again.load(state)
    assert again.unreleased == {7}
    assert again.positions == {("mqtt", 3): 42}
    again.new_session()
    assert not again.unreleased


@pytest.mark.parametrize(
    "state", [{}, {"unreleased": 3, "positions": []}, {"unreleased": ["x"], "positions": []}]
)
def test_nonsense_is_no_state(state: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Inbox(1000).load(state)


# -- records


def batch(keys: list[bytes | None], headers: list[bytes]) -> list[RecordBatch]:
    return [RecordBatch(encode(Columns([b"v"] * len(keys), keys, headers), base_offset=10))]


def test_rows_have_the_name_from_key_or_header() -> None:
    other = encode_headers(
        (("mqtt.topic", b"named"), ("mqtt.client", b"dev"), ("mqtt.retain", b"1"))
    )
    rows = list(BridgeRecordReader().rows(batch([b"key", b"key"], [b"", other]), 0))
    assert [(row.offset, row.name, row.retain, row.client) for row in rows] == [
        (10, "key", False, ""),
        (11, "named", True, "dev"),
    ]
    assert [
        row.offset for row in BridgeRecordReader().rows(batch([b"a", b"b"], [b"", b""]), 11)
    ] == [11]


def test_records_that_are_no_publishes_are_counted() -> None:
    reader = BridgeRecordReader()
    assert not list(reader.rows(batch([b"\xff", b"b"], [b"", b"\x05"]), 0))
    assert reader.unreadable == 2


def test_what_came_by_a_link_does_not_go_out_by_it() -> None:
    headers = incoming_headers("far", "me", 2, 77, retain=True)
    (row,) = BridgeRecordReader().rows(batch([b"a"], [headers]), 0)
    assert (row.bridge, row.client, row.retain) == ("far", "me", True)
    assert packet_id_of(row.qos_2_id, "far") == 77
    assert packet_id_of(row.qos_2_id, "fa") is None
    assert is_echo(row, "far", [])
    assert not is_echo(row, "other", [])
    assert is_echo(row, "other", ["m*"])
