"""Goal: what an application has in hand is handled when it comes back, and not when it fails."""

from __future__ import annotations

from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.sdk.consumer.positions import Positions, Span
from lakemq.plugins.native.sdk.types import ConsumerRecord

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def record(place: TopicPartition, offset: int) -> ConsumerRecord:
    return ConsumerRecord(*place, offset, 0, None, b"")


def begun() -> Positions:
    positions = Positions()
    positions.take(A, 10)
    positions.take(B, 20)
    return positions


def test_one_record_in_hand() -> None:
    positions = begun()
    positions.in_hand = record(A, 12)
    assert positions.at[A] == 10 and positions.now() == {A: 13, B: 20}
    assert positions.next_of(A) == 13 and positions.next_of(B) == 20
    positions.came_back()
    assert positions.at == {A: 13, B: 20} and positions.in_hand is None
    positions.last = Span(A, 15, 30)  # behind it lie records that are not wanted
    positions.in_hand = record(A, 15)
    assert positions.now()[A] == 30
    positions.give_back()
    assert positions.at[A] == 15


def test_several_spans_in_hand() -> None:
    positions = begun()
    positions.in_hand = (Span(A, 10, 12), Span(B, 20, 25), Span(A, 12, 19))
    assert positions.now() == {A: 19, B: 25} and positions.next_of(A) == 19
    positions.give_back()
    assert positions.at == {A: 10, B: 20}
    positions.in_hand = (Span(A, 10, 12), Span(A, 12, 19))
    positions.came_back()
    assert positions.at == {A: 19, B: 20}


def test_a_seek_forgets_only_what_is_in_hand_of_its_partition() -> None:
    positions = begun()
    positions.in_hand = (Span(A, 10, 12), Span(B, 20, 25))
    positions.seek(A, 3)
    assert positions.now() == {A: 3, B: 25}
    positions.came_back()
    assert positions.at == {A: 3, B: 25}
    positions.in_hand = record(B, 25)
    positions.seek(B, 1)
    positions.came_back()
    assert positions.at[B] == 1


def test_rewinding_goes_back_to_the_last_commit() -> None:
    positions = begun()
    positions.in_hand = record(A, 14)
    positions.came_back()
    positions.committed({A: 12, TopicPartition("other", 0): 1})
    positions.in_hand = record(A, 15)
    positions.rewind()
    assert positions.now() == {A: 12, B: 20}


def test_what_is_dropped_stays_dropped() -> None:
    positions = begun()
    positions.in_hand = (Span(A, 10, 12), Span(B, 20, 25))
    positions.drop([A])
    assert positions.now() == {B: 25}
    positions.came_back()
    positions.rewind()
    assert positions.at == {B: 20}
