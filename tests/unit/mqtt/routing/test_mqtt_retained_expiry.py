"""Goal: retained messages whose expiry interval is over leave memory, some in a turn, and never
take a newer one along."""

from __future__ import annotations

import pytest

from lakemq.plugins.mqtt.retaining.agreement import Agreement, Entry
from lakemq.plugins.mqtt.routing.retained import EXPIRED_AT_ONCE, Retained
from lakemq.plugins.mqtt.wire.messages import Message, Place


def message(
    name: str, payload: bytes, expires_ms: int | None, offset: int | None = None
) -> Message:
    place = None if offset is None else Place("t", 0, offset)
    made = Message(name, payload, 1, True, 0, place=place)
    made.expires_ms = expires_ms
    return made


def retained() -> Retained:
    kept = Retained(10_000, 10**6)
    kept.tracking = True
    return kept


def names(kept: Retained) -> list[str]:
    return sorted(one.topic for one in kept.everything())


def test_what_has_expired_is_forgotten_and_its_room_is_free() -> None:
    kept = retained()
    for number in range(5):
        kept.put(message(f"a/{number}", b"x", 1000 * number))
    kept.put(message("for/ever", b"x", None))
    kept.take_changes()
    assert not kept.drop_expired(2000, alone=True)
    assert names(kept) == ["a/3", "a/4", "for/ever"]
    assert kept.take_changes() == {"a/0": None, "a/1": None, "a/2": None}
    assert (kept.count, kept.size_bytes) == (3, 8 + 4 + 4 + 1)


def test_what_was_replaced_is_not_forgotten_in_its_time() -> None:
    kept = retained()
    for name, later_ms in (("longer", 5000), ("for/ever", None)):
        kept.put(message(name, b"old", 1000))
        kept.put(message(name, b"new", later_ms))
    kept.put(message("gone", b"x", 1000))
    kept.forget("gone")
    kept.put(message("gone", b"y", None))
    kept.drop_expired(4999, alone=True)
    assert names(kept) == ["for/ever", "gone", "longer"]
    kept.drop_expired(5000, alone=True)
    assert names(kept) == ["for/ever", "gone"]


def test_a_turn_forgets_some_at_most() -> None:
    kept = retained()
    for number in range(2 * EXPIRED_AT_ONCE + 1):
        kept.put(message(f"a/{number}", b"x", 1))
    counts = []
    while kept.drop_expired(1, alone=True):
        counts.append(kept.count)
    assert counts == [EXPIRED_AT_ONCE + 1, 1]
    assert kept.count == 0


@pytest.mark.parametrize("order", ["newer first", "expiry first"])
def test_what_one_node_forgets_is_not_newer_than_what_another_has(order: str) -> None:
    """A node has not heard yet that the message was replaced when that expires."""
    late, other = retained(), retained()
    for kept in (late, other):
        kept.put(message("a", b"old", 1000, 7))
        kept.take_changes()
    late.drop_expired(1000, alone=False)
    written: list[Entry] = Agreement(late).due(1000, lambda place: True)
    assert [(one.topic, one.message, one.source) for one in written] == [
        ("a", None, Place("t", 0, 7))
    ]
    agreement = Agreement(other)
    newer = message("a", b"new", None, 8)
    if order == "newer first":
        other.put(newer, let_in=True)
        agreement.read(written[0], 1000, lambda place: True)
    else:
        agreement.read(written[0], 1000, lambda place: True)
        assert other.count == 0
        other.put(newer, let_in=True)
    assert other.get("a") is newer


def test_what_lies_in_no_topic_is_forgotten_by_each_node_for_itself() -> None:
    """Nothing would tell another node that its newer one is not meant."""
    kept = retained()
    kept.put(message("a", b"x", 1000))
    kept.take_changes()
    kept.drop_expired(1000, alone=False)
    assert (kept.count, kept.take_changes()) == (0, {})
