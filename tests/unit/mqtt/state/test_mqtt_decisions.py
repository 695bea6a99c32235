"""Goal: decisions are bounded by kind, and say from when on they are whole."""

from __future__ import annotations

from lakemq.plugins.mqtt.state.decisions import TEXT_MAX, Decisions
from lakemq.plugins.mqtt.wire.messages import Message, Place


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


def test_a_flood_of_one_kind_pushes_out_no_other() -> None:
    decisions = Decisions(3, Clock())
    decisions.note("refused", "a", "t", why="rule 1")
    for number in range(100):
        decisions.note("queue_full", "b", f"t/{number}")
    assert [each.why for each in decisions.of("refused")] == ["rule 1"]
    assert [each.topic for each in decisions.of("queue_full")] == ["t/97", "t/98", "t/99"]
    # It began at 1001, and the oldest that is held of the full kind is of 1100.
    assert decisions.whole_since_ms("refused") == 1_001
    assert decisions.whole_since_ms("refused", "queue_full") == 1_100


def test_texts_of_clients_are_cut() -> None:
    decisions = Decisions(1, Clock())
    decisions.note("refused", "a", "t" * 65_535, why="w" * 65_535)
    (found,) = decisions.of("refused")
    assert (len(found.topic), len(found.why)) == (TEXT_MAX, TEXT_MAX)


def test_a_dropped_delivery_is_known_by_its_place() -> None:
    decisions = Decisions(2, Clock())
    place = Place("readings", 1, 7)
    decisions.dropped("gone", "b", None, place)
    decisions.dropped("expired", "b", Message("t", b"", 1, False, 5, origin="a", place=place), None)
    gone, expired = decisions.of("gone", "expired")
    assert (gone.topic, gone.place, expired.place) == ("", place, place)
    assert (expired.topic, expired.origin) == ("t", "a")


def test_off_it_holds_nothing() -> None:
    decisions = Decisions(0, Clock())
    decisions.note("refused", "a", "t")
    assert list(decisions.of("refused")) == []
    assert decisions.whole_since_ms("refused") is None
