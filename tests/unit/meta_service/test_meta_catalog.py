"""The catalog: pure, deterministic, never raising."""

from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.meta_service.api.errors import InvalidArgument, UnsupportedCommand
from lakemq.meta_service.catalog import apply as apply_module
from lakemq.meta_service.catalog.apply import MemberTooOld
from lakemq.meta_service.catalog.command_codec import (
    RETIRED_KINDS,
    Header,
    command,
    decode_command,
)
from lakemq.meta_service.catalog.commands import (
    AllocateIds,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    OpenSession,
    RegisterNode,
    SetClusterId,
    SetFeatureLevel,
    Tick,
    Txn,
)
from lakemq.meta_service.catalog.nodes import decode_node, node_key
from lakemq.meta_service.catalog.tables import (
    KEYS,
    RESULTS,
    TOPIC_PREFIX,
    decode_events,
    decode_row,
    event_key,
    pack,
)
from lakemq.meta_service.catalog.topics import topic_key
from tests.support.meta.catalog_rig import Catalog
from tests.support.seeds import examples

CLIENT = b"c" * 16
TOPIC_ID = "0" * 32


def put(key: bytes, value: bytes | None) -> Txn:
    return Txn((), ((key, value, 0),))


def node(name: str, rack: str = "") -> RegisterNode:
    return RegisterNode(name, {"native": "h:1"}, rack, "0.1", 1, False)


def test_a_mutation_takes_a_revision_and_a_row_counts_its_writes() -> None:
    catalog = Catalog()
    assert catalog.do(put(b"a", b"1")).result.revision == 1
    assert catalog.do(put(b"a", b"2")).result.revision == 2
    row = decode_row(catalog.store.get(KEYS + b"a") or b"")
    assert row == (b"2", 1, 2, 2)
    catalog.do(put(b"a", None))
    catalog.do(put(b"a", b"3"))
    assert decode_row(catalog.store.get(KEYS + b"a") or b"") == (b"3", 4, 4, 1)


def test_deleting_what_is_absent_takes_no_revision() -> None:
    catalog = Catalog()
    catalog.do(put(b"a", b"1"))
    applied = catalog.do(put(b"b", None))
    assert (applied.result.revision, applied.rows) == (1, [])


@pytest.mark.parametrize(("revision", "held"), [(0, False), (1, True), (2, False)])
def test_a_transaction_does_one_of_two_lists_at_once(revision: int, held: bool) -> None:
    catalog = Catalog()
    catalog.do(put(b"a", b"1"))
    then = ((b"b", b"then", 0), (b"c", b"then", 0))
    applied = catalog.do(Txn(((b"a", revision),), then, ((b"b", b"else", 0),)))
    assert applied.result.payload[0] is held
    assert catalog.value(b"b") == (b"then" if held else b"else")
    assert catalog.value(b"c") == (b"then" if held else None)
    assert catalog.state.revision == 2


def test_absent_keys_compare_with_revision_zero() -> None:
    catalog = Catalog()
    create = Txn(((b"a", 0),), ((b"a", b"1", 0),))
    assert catalog.do(create).result.payload[0] is True
    assert catalog.do(create).result.payload[0] is False


def test_events_of_a_revision_are_kept_in_order() -> None:
    catalog = Catalog()
    catalog.do(Txn((), ((b"b", b"1", 0), (b"a", b"2", 0), (b"b", None, 0))))
    data = catalog.store.get(event_key(1))
    assert data is not None
    assert decode_events(data) == [(b"b", b"1"), (b"a", b"2"), (b"b", None)]


def test_history_is_trimmed_by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_module, "HISTORY_REVISIONS_MAX", 10)
    catalog = Catalog()
    for number in range(30):
        catalog.do(put(b"k", b"%d" % number))
    assert catalog.state.compact_revision == 20
    assert [r for r in range(1, 31) if catalog.store.get(event_key(r))] == list(range(21, 31))
    assert catalog.state.event_bytes == sum(
        len(catalog.store.get(event_key(r)) or b"") for r in range(21, 31)
    )


def test_history_is_trimmed_by_size_but_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_module, "HISTORY_MAX_BYTES", 100)
    catalog = Catalog()
    for number in range(5):
        catalog.do(put(b"k", b"%d" % number * 200))
    assert catalog.state.compact_revision == 4
    assert catalog.store.get(event_key(5)) is not None


def test_a_retried_command_is_applied_once_and_answers_the_same() -> None:
    catalog = Catalog()
    catalog.do(OpenSession(CLIENT))
    header = Header(CLIENT, 1, 0)
    first = catalog.do(AllocateIds("producer", 5), header)
    again = catalog.do(AllocateIds("producer", 5), header)
    assert first.result == again.result
    assert catalog.do(AllocateIds("producer", 5), Header(CLIENT, 2, 0)).result.payload == 5


def test_a_retried_failure_answers_the_same() -> None:
    catalog = Catalog()
    catalog.do(OpenSession(CLIENT))
    header = Header(CLIENT, 1, 0)
    assert catalog.do(DeleteTopic("t"), header).result.code == "NOT_FOUND"
    catalog.do(CreateTopic("t", TOPIC_ID, 1, 1, {}))
    assert catalog.do(DeleteTopic("t"), header).result.code == "NOT_FOUND"
    assert catalog.value(topic_key("t")) is not None


def test_answers_are_dropped_once_the_client_has_them() -> None:
    catalog = Catalog()
    catalog.do(OpenSession(CLIENT))
    for sequence in range(1, 51):
        catalog.do(put(b"a", b"x"), Header(CLIENT, sequence, sequence - 1))
    assert len(list(catalog.store.scan(RESULTS))) == 1
    late = catalog.do(put(b"a", b"late"), Header(CLIENT, 7, 0))
    assert late.result.code == "INVALID_ARGUMENT"
    assert catalog.value(b"a") == b"x"


def test_commands_of_one_client_may_arrive_out_of_order() -> None:
    catalog = Catalog()
    catalog.do(OpenSession(CLIENT))
    for sequence in (3, 1, 2):
        assert not catalog.do(put(b"%d" % sequence, b"x"), Header(CLIENT, sequence, 0)).result.code


def test_an_unknown_session_is_refused_definitely() -> None:
    catalog = Catalog()
    applied = catalog.do(put(b"a", b"1"), Header(CLIENT, 1, 0))
    assert applied.result.code == "SESSION_EXPIRED"
    assert catalog.value(b"a") is None


def test_the_cluster_id_is_set_once() -> None:
    catalog = Catalog()
    assert catalog.do(SetClusterId("a" * 32)).result.payload == "a" * 32
    assert catalog.do(SetClusterId("b" * 32)).result.payload == "a" * 32


def test_time_never_goes_back() -> None:
    catalog = Catalog()
    catalog.do(Tick(100))
    assert catalog.do(Tick(50)).result.payload == 100
    assert catalog.state.clock_ms == 100


def test_id_blocks_never_overlap() -> None:
    catalog = Catalog()
    firsts = [catalog.do(AllocateIds("p", count)).result.payload for count in (1, 10, 3)]
    assert firsts == [0, 1, 11]
    assert catalog.do(AllocateIds("other", 1)).result.payload == 0


def test_a_command_above_the_feature_level_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tick, "level", 2)
    catalog = Catalog()
    assert catalog.do(Tick(5)).result.code == "UNSUPPORTED_COMMAND"
    assert catalog.state.clock_ms == 0
    monkeypatch.setattr(apply_module, "FEATURE_LEVEL", 2)
    assert not catalog.do(SetFeatureLevel(2)).result.code
    assert not catalog.do(Tick(5)).result.code
    assert catalog.do(SetFeatureLevel(1)).result.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("kind", RETIRED_KINDS)
def test_a_retired_command_changes_nothing(kind: str) -> None:
    """Old logs may hold them."""
    catalog = Catalog()
    catalog.do(SetFeatureLevel(3))
    applied = catalog.apply_bytes(pack((kind, b"", 0, 0, ["a", 1])))
    assert applied.result.code == "UNSUPPORTED_COMMAND"
    assert (applied.writes, applied.rows) == ({}, [])
    assert applied.state.applied_index == 2


def test_a_retired_kind_is_not_used_again() -> None:
    with pytest.raises(AssertionError):
        command(RETIRED_KINDS[0])(SetFeatureLevel)


def test_a_member_that_does_not_know_the_feature_level_stops() -> None:
    with pytest.raises(MemberTooOld, match="feature level 9"):
        Catalog().do(SetFeatureLevel(9))


# ------------------------------------------------------------ nodes and topics


def test_a_registration_gets_a_rising_epoch() -> None:
    catalog = Catalog()
    assert catalog.do(node("n1")).result.payload == 1
    assert catalog.do(node("n1")).result.payload == 2
    registered = decode_node(node_key("n1"), catalog.value(node_key("n1")) or b"")
    assert (registered.node_id, registered.broker_epoch) == ("n1", 2)
    assert registered.addresses == {"native": "h:1"}


def test_partitions_are_spread_evenly_with_leaders() -> None:
    catalog = Catalog()
    for name in ("a", "b", "c"):
        catalog.do(node(name))
    catalog.do(CreateTopic("t", TOPIC_ID, 6, 2, {"retention_ms": 5}))
    topic = catalog.topic("t")
    replicas = [r for p in topic.partitions for r in p.replicas]  # type: ignore[attr-defined]
    leaders = [p.leader for p in topic.partitions]  # type: ignore[attr-defined]
    assert sorted(replicas) == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    assert sorted(leaders) == ["a", "a", "b", "b", "c", "c"]
    assert all(p.in_sync == p.replicas for p in topic.partitions)  # type: ignore[attr-defined]


def test_replicas_of_a_partition_go_to_different_racks() -> None:
    catalog = Catalog()
    for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2")):
        catalog.do(node(name, rack))
    catalog.do(CreateTopic("t", TOPIC_ID, 4, 2, {}))
    for partition in catalog.topic("t").partitions:  # type: ignore[attr-defined]
        assert "c" in partition.replicas


def test_partitions_made_without_nodes_are_placed_when_the_first_comes() -> None:
    catalog = Catalog()
    catalog.do(CreateTopic("t", TOPIC_ID, 2, 1, {}))
    assert catalog.topic("t").partitions[0].leader is None  # type: ignore[attr-defined]
    catalog.do(node("n1"))
    assert [p.leader for p in catalog.topic("t").partitions] == ["n1", "n1"]  # type: ignore[attr-defined]


def test_partitions_only_grow() -> None:
    catalog = Catalog()
    catalog.do(node("n1"))
    catalog.do(CreateTopic("t", TOPIC_ID, 2, 1, {}))
    assert catalog.do(AlterTopic("t", 1, None)).result.code == "INVALID_ARGUMENT"
    assert not catalog.do(AlterTopic("t", 4, {"cleanup": "compact"})).result.code
    topic = catalog.topic("t")
    assert [p.partition for p in topic.partitions] == [0, 1, 2, 3]  # type: ignore[attr-defined]
    assert topic.config == {"cleanup": "compact"}  # type: ignore[attr-defined]


def test_a_topic_is_created_once_and_deleted_once() -> None:
    catalog = Catalog()
    catalog.do(node("n1"))
    create = CreateTopic("t", TOPIC_ID, 1, 1, {})
    assert not catalog.do(create).result.code
    assert catalog.do(create).result.code == "ALREADY_EXISTS"
    assert not catalog.do(DeleteTopic("t")).result.code
    assert catalog.do(DeleteTopic("t")).result.code == "NOT_FOUND"
    assert list(catalog.store.scan(KEYS + TOPIC_PREFIX)) == []


def test_deleting_a_topic_frees_its_load() -> None:
    catalog = Catalog()
    catalog.do(node("a"))
    catalog.do(node("b"))
    catalog.do(CreateTopic("big", TOPIC_ID, 10, 1, {}))
    catalog.do(DeleteTopic("big"))
    catalog.do(CreateTopic("t", TOPIC_ID, 2, 1, {}))
    assert {p.leader for p in catalog.topic("t").partitions} == {"a", "b"}  # type: ignore[attr-defined]


# ------------------------------------------------------------ poison


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "INVALID_ARGUMENT"),
        (b"\xc1", "INVALID_ARGUMENT"),
        (msgpack.packb(5), "INVALID_ARGUMENT"),
        (msgpack.packb(["nonsense", b"", 0, 0, []]), "UNSUPPORTED_COMMAND"),
        (msgpack.packb(["txn", b"", 0, 0, []]), "INVALID_ARGUMENT"),
        (msgpack.packb(["txn", b"", 0, 0, [1, 2, 3]]), "INVALID_ARGUMENT"),
        (msgpack.packb(["txn", b"", -1, 0, [[], [], []]]), "INVALID_ARGUMENT"),
        (msgpack.packb(["txn", b"", 0, 0, [[], [[b"\0x", b"", 0]], []]]), "INVALID_ARGUMENT"),
        (msgpack.packb(["tick", b"", 0, 0, [True]]), "INVALID_ARGUMENT"),
        (msgpack.packb(["topic+", b"", 0, 0, ["..", TOPIC_ID, 1, 1, {}]]), "INVALID_ARGUMENT"),
        (
            msgpack.packb(["topic+", b"", 0, 0, ["t", TOPIC_ID, 1, 1, {b"x": 1}]]),
            "INVALID_ARGUMENT",
        ),
    ],
)
def test_a_poison_command_answers_an_error_and_the_next_one_works(data: bytes, code: str) -> None:
    catalog = Catalog()
    assert catalog.apply_bytes(data).result.code == code
    assert catalog.state.applied_index == 1
    assert catalog.do(put(b"a", b"1")).result.revision == 1


def test_a_bug_in_a_command_answers_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise ZeroDivisionError("oops")

    monkeypatch.setitem(apply_module._HANDLERS, AllocateIds, broken)
    catalog = Catalog()
    result = catalog.do(AllocateIds("x", 1)).result
    assert (result.code, result.payload) == (
        "INTERNAL",
        "ZeroDivisionError in command 'ids': oops",
    )


@given(st.binary(max_size=200))
@settings(max_examples=examples(300))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    with contextlib.suppress(InvalidArgument, UnsupportedCommand):
        decode_command(data)


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.binary(max_size=8)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(
    st.sampled_from(["txn", "node", "topic+", "topic~", "topic-", "ids", "tick", "session"]),
    st.lists(_values, max_size=6),
)
@settings(max_examples=examples(300))
def test_any_fields_of_a_known_command_are_applied_or_refused(kind: str, fields: list) -> None:  # type: ignore[type-arg]
    catalog = Catalog()
    result = catalog.apply_bytes(msgpack.packb([kind, b"", 0, 0, fields])).result
    assert result.code != "INTERNAL", result.payload


# ------------------------------------------------------------ properties

_keys = st.sampled_from([b"a", b"b", b"c"])
_operations = st.tuples(_keys, st.none() | st.binary(max_size=3), st.just(0))
_txns = st.builds(
    Txn,
    st.lists(st.tuples(_keys, st.integers(0, 12)), max_size=2).map(tuple),
    st.lists(_operations, max_size=3).map(tuple),
    st.lists(_operations, max_size=3).map(tuple),
)


@given(st.lists(_txns, max_size=15))
def test_events_replay_to_the_state_and_members_stay_alike(txns: list[Txn]) -> None:
    one, other = Catalog(), Catalog()
    model: dict[bytes, bytes] = {}
    for txn in txns:
        applied = one.do(txn)
        assert other.do(txn).state.digest == applied.state.digest
        if applied.rows:
            for key, value in decode_events(one.store.get(event_key(one.state.revision)) or b""):
                if value is None:
                    del model[key]
                else:
                    model[key] = value
    stored = {k[1:]: decode_row(v).value for k, v in one.store.scan(KEYS)}
    assert stored == model
    assert one.store.rows == other.store.rows


@given(st.lists(_txns, min_size=1, max_size=10), st.data())
def test_the_digest_tells_different_states_apart(txns: list[Txn], data: st.DataObject) -> None:
    one, other = Catalog(), Catalog()
    for txn in txns:
        one.do(txn)
        other.do(txn)
    one.do(put(b"z", b"1"))
    other.do(put(b"z", b"2"))
    assert one.state.digest != other.state.digest
