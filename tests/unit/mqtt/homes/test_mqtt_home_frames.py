"""Goal: what nodes say to each other about sessions comes through, and bytes that are no such
message do no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.plugins.mqtt.homes import frames
from lakemq.plugins.mqtt.homes.frames import Asked, Code, Kind, Outcome, Record, Saved
from lakemq.plugins.mqtt.homes.table import Claim, Known, Owned, Owner
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot
from tests.support.seeds import examples

A = Owner("n1", 7)
USER = ("user", "ann")
CLAIMS = [Claim("x", A, USER, True, False, True), Claim("ü", A, USER, False, True, False)]
ASKED = [Asked("x", 5, True)]
SAVED = [Saved("x", 5, 9, b"s", True, True), Saved("y", 6, 10, None, False, False)]
OWNED = [Owned("x", 5, USER, True)]
KNOWN = [Known("x", 5, 6)]
OUTCOMES = [Outcome(Code.DONE, 5, True, False, b"s", True), Outcome(Code.FULL)]
READERS: list[Callable[[bytes], Any]] = [
    lambda data: frames.read_claims(A, data),
    lambda data: frames.read_outcomes(data, 1),
    frames.read_asks,
    lambda data: frames.read_states(data, 1),
    frames.read_saves,
    lambda data: frames.read_codes(data, 1),
    frames.read_owned_request,
    frames.read_owned,
    frames.read_known,
    frames.read_record,
]


def test_what_is_said_is_heard() -> None:
    kind, data = frames.split(frames.claims_bytes(CLAIMS))
    assert (kind, frames.read_claims(A, data)) == (Kind.CLAIM, CLAIMS)
    assert frames.read_outcomes(frames.outcomes_bytes(OUTCOMES), 2) == OUTCOMES
    kind, data = frames.split(frames.asks_bytes(ASKED))
    assert (kind, frames.read_asks(data)) == (Kind.LET_GO, ASKED)
    assert frames.read_states(frames.states_bytes([b"", None]), 2) == [b"", None]
    kind, data = frames.split(frames.saves_bytes(SAVED))
    assert (kind, frames.read_saves(data)) == (Kind.SAVE, SAVED)
    assert frames.read_codes(frames.codes_bytes([Code.STALE]), 1) == [Code.STALE]
    kind, data = frames.split(frames.owned_request(3, 4, 5))
    assert (kind, frames.read_owned_request(data)) == (Kind.OWNED, (3, 4, 5))
    assert frames.read_owned(frames.owned_bytes(2, OWNED)) == (2, OWNED)
    assert frames.split(frames.owned_bytes(1, OWNED, Kind.ANNOUNCE))[0] is Kind.ANNOUNCE
    assert frames.read_known(frames.known_bytes(KNOWN)) == KNOWN
    record = Record(5, A, USER, True, b"state")
    assert frames.read_record(frames.record_bytes(record)) == record


@pytest.mark.parametrize("request_", [b"", b"\x00", b"\xff{}"], ids=["none", "zero", "unknown"])
def test_a_request_of_no_kind(request_: bytes) -> None:
    with pytest.raises(BadSnapshot, match="no request"):
        frames.split(request_)


def test_answers_to_other_rows_than_were_asked_for() -> None:
    for read, data in (
        (frames.read_outcomes, frames.outcomes_bytes(OUTCOMES)),
        (frames.read_states, frames.states_bytes([None, None])),
        (frames.read_codes, frames.codes_bytes([Code.DONE, Code.DONE])),
    ):
        with pytest.raises(BadSnapshot, match="2 answers to 1 rows"):
            read(data, 1)


def test_more_rows_than_a_message_may_have() -> None:
    with pytest.raises(BadSnapshot, match="rows; 4096 at most"):
        frames.read_known(frames.known_bytes(KNOWN * (frames.ROWS_MAX + 1)))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=7),
    max_leaves=20,
)  # fmt: skip
KEYS = st.sampled_from(["r", "p", "n", "ep", "own", "usr", "urg", "st", "v"])


@settings(max_examples=examples(300))
@given(value=st.dictionaries(KEYS, VALUES) | VALUES, cut=st.integers(0, 40))
def test_no_bytes_do_harm(value: Any, cut: int) -> None:
    data = msgpack.packb({"v": 1, **value} if isinstance(value, dict) else value)
    for read in READERS:
        for some in (data, data[:cut]):
            try:
                read(some)
            except BadSnapshot:
                continue
