"""Goal: bytes of the coordinator's own topics are what docs/formats/transactions.md says, stay so,
and damaged ones are told from whole ones.

Golden bytes are never changed: what was written once must be readable for ever.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.transactions.types import Owner, StagedBatchId
from lakemq.broker_core.scheduling.formats import (
    EndedSchedule,
    StoredSchedule,
    decode_schedule,
    decode_schedule_id,
    encode_ended,
    encode_schedule,
    encode_schedule_id,
)
from lakemq.broker_core.transactions.formats import (
    StagedKey,
    decode_owner,
    decode_staged_key,
    decode_state,
    encode_owner,
    encode_staged_key,
    encode_state,
)
from lakemq.broker_core.transactions.state import (
    CommitTarget,
    OwnerState,
    PendingCommit,
    StagedRef,
)

TOPIC_ID = "00112233445566778899aabbccddeeff"
KEY = StagedKey(
    StagedBatchId(Owner("sink", "s"), 2, 3, 4, 5, 6), "rooms", TOPIC_ID, 7, 8, 0xDEADBEEF
)
STATE = OwnerState(
    2,
    3,
    4,
    5,
    60_000,
    1_700_000_000_000,
    PendingCommit(
        (CommitTarget("rooms", TOPIC_ID, 1, 9, (StagedRef(2, 10, 11),)),), (("offsets", b"xy"),)
    ),
)
DELAYED = StoredSchedule(1_700_000_000_000, True, "rooms", TOPIC_ID, 1, 2, b"batch")

GOLDEN = {
    "owner": (encode_owner(Owner("transaction", "t")), "0102010074"),
    "staged key": (
        encode_staged_key(KEY),
        "010101007302000000030000000000000004000000050000000600000000112233445566778899aabbccddeeff"
        "0700000008000000efbeadde0500726f6f6d73",
    ),
    "state": (
        encode_state(STATE),
        "0102000000030000000000000004000000000000000500"
        "60ea0000"
        "0068e5cf8b010000"
        "01"
        "01000000"
        "0100"
        "050000112233445566778899aabbccddeeff01000000090000000000000001000000726f6f6d73"
        "02000a000000000000000b000000"
        "0700020000006f6666736574737879",
    ),
    "scheduled": (
        encode_schedule(DELAYED),
        "01010068e5cf8b010000"
        "0100112233445566778899aabbccddeeff01000000020000000500726f6f6d73"
        "6261746368",
    ),
    "ended": (encode_ended(EndedSchedule(5)), "01020500000000000000"),
    "id": (encode_schedule_id("a"), "0161"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_bytes_never_change(name: str) -> None:
    written, golden = GOLDEN[name]
    assert written.hex() == golden


owners = st.builds(
    Owner, st.sampled_from(["sink", "transaction", "scheduler"]), st.text(min_size=1, max_size=20)
)
u32 = st.integers(0, 2**32 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
topics = st.text("abc-._", min_size=1, max_size=9)
topic_ids = st.binary(min_size=16, max_size=16).map(bytes.hex)
places = st.builds(StagedBatchId, owners, u32, i64, u32, u32, u32)
keys = st.builds(StagedKey, places, topics, topic_ids, u32, u32, u32)
entries = st.builds(StagedRef, st.integers(0, 65535), i64, u32)
targets = st.builds(
    CommitTarget, topics, topic_ids, u32, i64, st.lists(entries, max_size=4).map(tuple)
)
effects = st.lists(
    st.tuples(st.text(min_size=1, max_size=5), st.binary(max_size=9)), max_size=3
).map(tuple)
pendings = st.none() | st.builds(
    PendingCommit, st.lists(targets, max_size=3).map(tuple), effects, st.integers(-1, 2**63 - 1)
)
states = st.builds(OwnerState, u32, i64, i64, st.integers(0, 65535), u32, i64, pendings)
schedules = st.builds(StoredSchedule, i64, st.booleans(), topics, topic_ids, u32, u32, st.binary())


@given(owners, keys, states, schedules)
def test_what_is_written_is_read_back(
    owner: Owner, key: StagedKey, state: OwnerState, stored: StoredSchedule
) -> None:
    assert decode_owner(encode_owner(owner)) == owner
    assert decode_staged_key(encode_staged_key(key)) == key
    assert decode_state(encode_state(state)) == state
    assert decode_schedule(encode_schedule(stored)) == stored
    assert decode_schedule_id(encode_schedule_id(owner.name)) == owner.name


@given(states, keys, st.data())
def test_cut_bytes_are_told(state: OwnerState, key: StagedKey, data: st.DataObject) -> None:
    for whole, decode in (
        (encode_state(state), decode_state),
        (encode_staged_key(key), decode_staged_key),
    ):
        at = data.draw(st.integers(0, len(whole) - 1))
        for damaged in (whole[:at], whole + b"x", b"\x09" + whole[1:]):
            with pytest.raises(ValueError):
                decode(damaged)


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x01\x03" + bytes(8), b"\x01\x01" + bytes(20)])
def test_what_is_not_a_schedule_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError):
        decode_schedule(value)
