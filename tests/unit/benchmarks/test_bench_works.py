"""Goal: works are declared without contradiction, and their load is the same in every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import about_s, chosen
from benchmarks.harness import report
from benchmarks.harness.declare import FIGURES, Work
from benchmarks.load.packets import Load, frames, identifier_at
from benchmarks.load.publishers import Outstanding, Paced, flood_chunk
from benchmarks.load.subscribers import Receiver
from benchmarks.works import GROWTHS, WORKS
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.packets import V311, Publish

ROOT = Path(__file__).parents[3]
LOAD = Load(publishers=2, names=5, qos=1, window=3)


def test_names_are_given_once() -> None:
    names = [each.name for each in (*WORKS, *GROWTHS)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_goals_name_figures_and_sides_of_their_work(work: Work) -> None:
    sides = [side.name for side in work.sides]
    assert len(sides) == len(set(sides))
    for goal in work.goals:
        assert goal.figure in FIGURES and FIGURES[goal.figure].better
        assert goal.peer is None or goal.peer in sides[1:]


def test_the_page_has_a_place_for_every_chapter() -> None:
    wanted = {"summary", "machine", "growth", "soak", *(work.page for work in WORKS)}
    assert set(report.marks((ROOT / "docs/performance.md").read_text())) == wanted


def test_the_short_run_takes_less_than_ten_minutes() -> None:
    works, growths = chosen([], False)
    assert growths == [] and sum(about_s(work, 3, 0.5) for work in works) < 600


def test_patterns_choose_works_by_name_and_page() -> None:
    assert [work.name for work in chosen(["qos1-2*"], False)[0]] == ["qos1-2000", "qos1-200"]
    assert {work.page for work in chosen(["journal"], False)[0]} == {"journal"}
    assert [growth.name for growth in chosen(["growth-pay*"], False)[1]] == ["growth-payload"]


def decoded(data: bytes) -> list[Publish]:
    return [each for each in Decoder(1 << 20, version=V311).feed(data) if isinstance(each, Publish)]


def test_payload_lengths_and_names_vary_and_repeat() -> None:
    packets = LOAD.packets_of(0, 30, True)
    assert packets == LOAD.packets_of(0, 30, True) != LOAD.packets_of(1, 30, True)
    found = decoded(b"".join(packets))
    assert {each.topic for each in found} == {"bench/0/x", "bench/2/x", "bench/4/x"}
    sizes = {len(each.payload) for each in found}
    assert len(sizes) > 10 and min(sizes) >= 50 and max(sizes) <= 200
    assert [each.packet_id for each in found] == list(range(1, 31))


def test_publishers_share_names_where_there_are_few() -> None:
    assert [Load(publishers=4, names=2).names_of(place) for place in range(4)] == [
        ["bench/0/x"], ["bench/1/x"], ["bench/0/x"], ["bench/1/x"],
    ]  # fmt: skip


def test_chunks_of_a_flood_hold_as_many_packets_for_each_publisher() -> None:
    load = Load(publishers=3, names=6)
    chunks = [flood_chunk(load, place, 8) for place in range(3)]
    assert {packets for _, packets in chunks} == {8}
    assert len(list(frames(chunks[0][0]))) == 8


def test_a_window_sends_as_much_as_was_acknowledged() -> None:
    state = Outstanding(LOAD, 0)
    assert len(list(frames(state.first()))) == LOAD.window
    done, out = state.turn(b"\x40\x02\x00\x01\x40\x02\x00")  # one PUBACK and a part of the next
    assert (done, len(list(frames(out)))) == (1, 1)
    done, out = state.turn(b"\x02")
    assert (done, len(list(frames(out)))) == (1, 1)


def test_a_window_never_sends_an_identifier_that_is_in_flight() -> None:
    state = Outstanding(LOAD, 0)
    flying = {1, 2, 3}
    for _ in range(20):
        first = min(flying)
        _, out = state.turn(b"\x40\x02" + first.to_bytes(2, "big"))
        at = identifier_at(out)
        identifier = int.from_bytes(out[at - 2 : at], "big")
        flying.remove(first)
        assert identifier not in flying
        flying.add(identifier)


def test_at_qos_2_a_publish_is_done_with_its_pubcomp() -> None:
    state = Outstanding(LOAD.sized(qos=2), 0)
    assert state.turn(b"\x50\x02\x00\x01") == (0, b"\x62\x02\x00\x01")
    assert state.turn(b"\x70\x02\x00\x01")[0] == 1


def test_latency_counts_from_when_a_publish_was_due() -> None:
    publisher, receiver = Paced(LOAD, 0), Receiver(stamped=True)
    packet = bytes(publisher.packet(10.0))
    assert receiver.take(packet[:7], 10.5) == b""
    assert receiver.take(packet[7:], 10.5) == b"\x40\x02\x00\x01"
    assert list(receiver.latencies) == [0.5] and receiver.count == 1
    assert decoded(packet)[0].packet_id == 1


def test_a_receiver_finishes_qos_2() -> None:
    receiver = Receiver(stamped=False)
    packet = LOAD.sized(qos=2).packets_of(0, 1, True)[0]
    assert receiver.take(packet, 0.0) == b"\x50\x02\x00\x01"
    assert receiver.take(b"\x62\x02\x00\x01", 0.0) == b"\x70\x02\x00\x01"


def test_long_lengths_are_framed() -> None:
    packet = Load(payload=(20_000, 20_000)).packets_of(0, 1, False)[0]
    ((first, begin, end),) = frames(packet + packet[:3])
    assert (first, begin, end) == (0x30, 4, len(packet))
    assert list(frames(packet[:-1])) == [] and list(frames(packet[:2])) == []
