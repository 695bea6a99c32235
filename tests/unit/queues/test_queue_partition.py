"""Goal: what the simulation does not say in words: bytes of snapshots, settings, single rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.queues.partition_state import (
    QueuePartitionState,
    Settlement,
    fresh,
    ranges,
)
from lakemq.broker_core.queues.settings import (
    QueueSettings,
    agreed,
    checked,
    decode_settings,
    encode_settings,
)
from lakemq.broker_core.queues.snapshot import (
    DeadLetterBatch,
    DeliveryState,
    QueueKey,
    Run,
    Snapshot,
    compact,
    decode_key,
    decode_snapshot,
    encode_key,
    encode_snapshot,
)

TOPIC_ID = "0123456789abcdef" * 2
states = st.none() | st.builds(DeliveryState, st.integers(0, 1000), st.integers(0, 2))
snapshots = st.builds(
    Snapshot,
    st.just(TOPIC_ID),
    st.integers(0, 2**62),
    st.lists(st.builds(Run, st.integers(1, 2**40), states), max_size=20).map(compact),
    st.none()
    | st.builds(
        DeadLetterBatch, st.integers(0, 2**62), st.text(max_size=9), st.integers(0, 9), st.just(())
    ),
)


def partition(count: int = 10, **settings: object) -> QueuePartitionState:
    state = QueuePartitionState(QueueSettings(**settings), fresh(TOPIC_ID, 0))  # type: ignore[arg-type]  # tests
    state.load(range(count), [b"k"] * count, count)
    return state


def test_bytes_of_a_snapshot_stay_what_they_are() -> None:
    snapshot = Snapshot(
        TOPIC_ID,
        300,
        (Run(200, None), Run(1, DeliveryState(2, 1))),
        DeadLetterBatch(7, "dead", 1, (500,)),
    )
    data = bytes.fromhex(
        "01" + TOPIC_ID + "2c01000000000000" + "04" + "c80100" + "0108"
        "0700000000000000" "01000000" "0400" "64656164" "01" "c801"
    )  # fmt: skip
    assert encode_snapshot(snapshot) == data
    assert decode_snapshot(data) == snapshot
    assert encode_key(QueueKey("g", "t", 3)).hex() == "01010001006774" + "03000000"
    assert encode_key(QueueKey("g", "t")).hex() == "01010001006774"


@given(snapshots)
def test_snapshots_come_back(snapshot: Snapshot) -> None:
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


@given(st.binary(max_size=80), snapshots, st.data())
def test_damage_is_an_error_and_nothing_else(
    noise: bytes, snapshot: Snapshot, data: st.DataObject
) -> None:
    whole = encode_snapshot(snapshot)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for wrong in (noise, cut, whole + b"\x00"):
        for decode in (decode_snapshot, decode_key, decode_settings):
            try:
                decode(wrong)
            except ValueError:
                continue


@given(st.text(max_size=9), st.text(max_size=9), st.integers(-1, 2**32 - 1))
def test_keys_come_back(group: str, topic: str, number: int) -> None:
    key = QueueKey(group, topic, number)
    assert decode_key(encode_key(key)) == key


def test_settings_come_back_and_unknown_ones_are_left_out() -> None:
    settings = QueueSettings(lock_ms=5000, order="key")
    assert decode_settings(encode_settings(settings)) == settings
    assert decode_settings(b'{"lock_ms": 5000, "order": "key", "later": 1}') == settings
    agreed(settings, {"order": "key"})
    with pytest.raises(InvalidRequest, match="lock_ms"):
        agreed(settings, {"lock_ms": 6000})
    with pytest.raises(InvalidRequest, match="dead_letter"):
        checked(QueueSettings(attempts_max=1))


def test_pauses_double_up_to_the_longest() -> None:
    settings = QueueSettings(backoff_ms=100, backoff_ms_max=500)
    assert [settings.backoff_of(each) for each in (1, 2, 3, 4, 50)] == [100, 200, 400, 500, 500]


def test_a_lock_that_was_extended_ends_later() -> None:
    state = partition(1, lock_ms=100)
    state.acquire(1, 5, 0)
    assert state.settle(1, 0, Settlement.EXTEND, 60)
    assert state.expire(100) == [] and state.next_due_ms() == 160
    assert state.expire(160) == [0]
    assert not state.settle(1, 0, Settlement.ACCEPT, 161)
    assert [each.attempt for each in state.acquire(2, 5, 161)] == [2]


def test_a_pause_holds_back_the_record_and_its_key() -> None:
    state = partition(3, order="key", backoff_ms=50)
    assert [each.offset for each in state.acquire(1, 9, 0)] == [0]
    state.settle(1, 0, Settlement.RETRY, 10)
    assert not state.has_ready(59) and state.next_due_ms() == 60
    assert [each.offset for each in state.acquire(1, 9, 60)] == [0]
    state.settle(1, 0, Settlement.ACCEPT, 61)
    assert [each.offset for each in state.acquire(1, 9, 61)] == [1]


def test_records_that_retention_took_are_finished() -> None:
    state = partition(10, lock_ms=100)
    state.acquire(1, 4, 0)
    assert state.advance(6) and state.start == 6 and state.held == 0
    assert not state.advance(6)
    assert not state.settle(1, 2, Settlement.ACCEPT, 1)
    assert [each.offset for each in state.acquire(1, 99, 1)] == [6, 7, 8, 9]
    assert state.advance(50) and state.start == state.end == 50


def test_a_snapshot_is_as_small_as_what_is_out_of_order() -> None:
    state = partition(10_000)
    state.acquire(1, 5000, 0)
    for offset in range(5000):
        if offset != 17:
            state.settle(1, offset, Settlement.ACCEPT, 1)
    assert state.snapshot().runs == (Run(1, DeliveryState(0)), Run(4982, None))
    assert len(encode_snapshot(state.snapshot())) < 40
    assert state.backlog(12_000) == 1 + 5000 + 2000


def test_offsets_as_ranges() -> None:
    assert ranges([5, 1, 2, 9, 3]) == [(1, 3), (5, 5), (9, 9)]


def test_what_is_done_is_counted() -> None:
    state = partition(3)
    for each in state.acquire(1, 3, 0):
        assert state.settle(1, each.offset, Settlement.ACCEPT, 0)
    assert (state.finished, state.unfinished, state.start) == (3, 0, 3)
    assert not state.settle(1, 0, Settlement.ACCEPT, 0), "it is nobody's any more"


def test_what_was_rejected_is_away_where_there_are_no_dead_letters() -> None:
    state = partition(2)
    first, second = state.acquire(1, 2, 0)
    state.settle(1, first.offset, Settlement.REJECT, 0)
    assert (state.start, state.unfinished, state.exhausted(9)) == (1, 1, [])
    kept = partition(2, dead_letter="dead")
    kept.acquire(1, 2, 0)
    kept.settle(1, 0, Settlement.REJECT, 0)
    assert (kept.start, kept.unfinished, kept.exhausted(9)) == (0, 2, [(0, DeliveryState(1, 2))])


def test_a_lock_that_ends_frees_its_record_at_once() -> None:
    state = partition(1, lock_ms=1000)
    state.acquire(1, 1, 0)
    assert state.expire(999) == []
    assert state.expire(1000) == [0]
    assert state.has_ready(1000)
    assert [tuple(each) for each in state.acquire(2, 1, 1000)] == [(0, 2)]


def test_nothing_is_ready_once_the_log_has_lost_it() -> None:
    state = partition(1)
    assert state.has_ready(0)
    assert state.advance(1)
    assert not state.has_ready(0)
    assert (state.start, state.unfinished) == (1, 0)


def test_an_exhausted_record_behind_another_of_its_key_is_known_after_a_restart() -> None:
    restored = Snapshot(
        TOPIC_ID,
        0,
        (Run(1, DeliveryState(1)), Run(1, DeliveryState(3, 1)), Run(1, DeliveryState())),
    )
    settings = QueueSettings(order="key", attempts_max=3, dead_letter="dead")
    state = QueuePartitionState(settings, restored)
    state.load(range(3), [b"k"] * 3, 3)
    assert state.exhausted(9) == [(1, DeliveryState(3, 1))]
    assert [each.offset for each in state.acquire(1, 9, 0)] == [0]
