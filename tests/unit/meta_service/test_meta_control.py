"""Leaders, in-sync sets and heartbeats: the rules, without a clock."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.meta_service.api.types import NodeRegistration, PartitionDescription, TopicDescription
from lakemq.meta_service.catalog.command_codec import Header
from lakemq.meta_service.catalog.commands import (
    CreateTopic,
    OpenSession,
    RegisterNode,
    RegisterStorage,
    SetFeatureLevel,
    Tick,
    Txn,
)
from lakemq.meta_service.catalog.control_commands import (
    ChangeInSync,
    ElectLeaders,
    ExpireSessions,
    RemoveNode,
    SetNodeState,
)
from lakemq.meta_service.catalog.nodes import decode_node, node_key
from lakemq.meta_service.catalog.partitions import settle_below_cluster_level
from lakemq.meta_service.catalog.tables import RESULTS, SESSIONS
from lakemq.meta_service.control.failure_detector import (
    HEARTBEAT_TIMEOUT_S,
    STABLE_S,
    FailureDetector,
    NodeReport,
    NodeStateChange,
)
from tests.support.meta.catalog_rig import Catalog
from tests.support.seeds import examples

TOPIC_ID = "0" * 32
NODES = ("a", "b", "c")


def cluster(replication: int = 3, partitions: int = 1) -> Catalog:
    """Nodes a, b and c, and topic t on them."""
    catalog = Catalog()
    for name in NODES:
        catalog.do(RegisterNode(name, {}, "", "1", 1, False))
    catalog.do(CreateTopic("t", TOPIC_ID, partitions, replication, {}))
    return catalog


def partition(catalog: Catalog, number: int = 0) -> PartitionDescription:
    topic = catalog.topic("t")
    assert isinstance(topic, TopicDescription)
    return topic.partitions[number]


def set_state(catalog: Catalog, name: str, state: str) -> None:
    epoch = NODES.index(name) + 1
    assert not catalog.do(SetNodeState(name, epoch, state)).result.code


def elect(catalog: Catalog, *, preferred: bool = False) -> list[str]:
    result = catalog.do(ElectLeaders(("t",), preferred)).result
    assert not result.code
    changed: list[str] = result.payload
    return changed


def in_sync_change(catalog: Catalog, *names: str, **changes: object) -> ChangeInSync:
    old = partition(catalog)
    fields: dict[str, object] = {
        "topic": "t",
        "topic_id": TOPIC_ID,
        "partition": 0,
        "leader": old.leader,
        "leader_epoch": old.leader_epoch,
        "partition_epoch": old.partition_epoch,
        "in_sync": names,
    }
    return ChangeInSync(**{**fields, **changes})  # type: ignore[arg-type]


# ------------------------------------------------------------ elections


def test_a_fenced_leader_is_replaced_from_the_in_sync_set() -> None:
    catalog = cluster()
    before = partition(catalog)
    assert before.leader is not None
    set_state(catalog, before.leader, "fenced")
    assert elect(catalog) == ["t"]
    after = partition(catalog)
    assert after.leader in set(before.in_sync) - {before.leader}
    assert set(after.in_sync) == set(before.in_sync) - {before.leader}
    assert (after.leader_epoch, after.partition_epoch) == (1, 1)


def test_a_replica_out_of_sync_never_leads() -> None:
    catalog = cluster()
    old = partition(catalog)
    assert old.leader is not None
    catalog.do(in_sync_change(catalog, old.leader))
    set_state(catalog, old.leader, "fenced")
    elect(catalog)
    after = partition(catalog)
    assert after.leader is None
    assert after.in_sync == (old.leader,), "the in-sync set became empty"
    set_state(catalog, old.leader, "active")
    elect(catalog)
    assert partition(catalog).leader == old.leader
    assert partition(catalog).leader_epoch == after.leader_epoch + 1


def test_a_draining_leader_gives_way_if_somebody_can_take_over() -> None:
    catalog = cluster()
    old = partition(catalog)
    assert old.leader is not None
    set_state(catalog, old.leader, "draining")
    elect(catalog)
    after = partition(catalog)
    assert after.leader != old.leader
    assert after.in_sync == old.in_sync, "a draining node still follows"


def test_a_draining_leader_that_is_alone_stays() -> None:
    catalog = cluster()
    leader = partition(catalog).leader
    assert leader is not None
    catalog.do(in_sync_change(catalog, leader))
    set_state(catalog, leader, "draining")
    assert elect(catalog) == []
    assert partition(catalog).leader == leader


def test_leadership_goes_back_to_the_first_replica_on_request_only() -> None:
    catalog = cluster()
    first = partition(catalog).replicas[0]
    set_state(catalog, first, "fenced")
    elect(catalog)
    set_state(catalog, first, "active")
    second = partition(catalog).leader
    assert elect(catalog) == []
    catalog.do(in_sync_change(catalog, *partition(catalog).replicas))
    assert elect(catalog) == []
    assert partition(catalog).leader == second
    assert elect(catalog, preferred=True) == ["t"]
    assert partition(catalog).leader == first


def test_a_leader_that_is_alone_in_sync_stays_while_it_is_fenced() -> None:
    """Nobody else has its records, so there is nothing to win by taking the leadership away."""
    catalog = cluster()
    catalog.do(SetFeatureLevel(3))
    leader = partition(catalog).leader
    assert leader is not None
    catalog.do(in_sync_change(catalog, leader))
    before = partition(catalog)
    set_state(catalog, leader, "fenced")
    assert elect(catalog) == elect(catalog, preferred=True) == []
    assert partition(catalog) == before


def test_a_fenced_leader_gives_way_to_whoever_is_in_sync() -> None:
    catalog = cluster()
    catalog.do(SetFeatureLevel(3))
    leader = partition(catalog).leader or ""
    set_state(catalog, leader, "fenced")
    assert elect(catalog) == ["t"]
    assert partition(catalog).leader not in (None, leader)


def test_electing_where_nothing_is_amiss_changes_nothing() -> None:
    catalog = cluster(partitions=5)
    revision = catalog.state.revision
    assert elect(catalog) == []
    assert elect(catalog, preferred=True) == []
    assert catalog.state.revision == revision


def test_an_older_registration_cannot_be_fenced() -> None:
    catalog = cluster()
    catalog.do(RegisterNode("a", {}, "", "1", 1, False))
    assert catalog.do(SetNodeState("a", 1, "fenced")).result.code == "COMPARE_FAILED"


STORAGE = ("1" * 32, "2" * 32)


def register(name: str, storage_id: str, *, heartbeats: bool = True) -> RegisterStorage:
    return RegisterStorage(name, {}, "", "1", 1, heartbeats, storage_id)


def node(catalog: Catalog, name: str) -> NodeRegistration:
    value = catalog.value(node_key(name))
    assert value is not None
    return decode_node(node_key(name), value)


def test_a_storage_id_is_kept_from_level_three_on() -> None:
    catalog = Catalog()
    assert catalog.do(register("a", STORAGE[0])).result.code == "UNSUPPORTED_COMMAND"
    catalog.do(SetFeatureLevel(3))
    assert not catalog.do(register("a", STORAGE[0])).result.code
    assert node(catalog, "a").storage_id == STORAGE[0]
    catalog.do(RegisterNode("b", {}, "", "1", 1, True))
    assert node(catalog, "b").storage_id == ""


def test_a_storage_belongs_to_one_node() -> None:
    catalog = Catalog()
    catalog.do(SetFeatureLevel(3))
    catalog.do(register("a", STORAGE[0]))
    refused = catalog.do(register("b", STORAGE[0])).result
    assert refused.code == "ALREADY_EXISTS"
    assert "belongs to node 'a' (fenced)" in refused.payload
    assert catalog.value(node_key("b")) is None
    catalog.do(RemoveNode("a"))
    assert not catalog.do(register("b", STORAGE[0])).result.code


def test_a_restart_is_a_new_registration() -> None:
    catalog = Catalog()
    catalog.do(SetFeatureLevel(3))
    first = catalog.do(register("a", STORAGE[0])).result.payload
    catalog.do(SetNodeState("a", first, "active"))
    second = catalog.do(register("a", STORAGE[0])).result.payload
    assert second > first
    assert (node(catalog, "a").broker_epoch, node(catalog, "a").state) == (second, "fenced")


def test_a_live_node_keeps_its_name() -> None:
    """Its disk can be replaced when it is dead."""
    catalog = Catalog()
    catalog.do(SetFeatureLevel(3))
    epoch = catalog.do(register("a", STORAGE[0])).result.payload
    catalog.do(SetNodeState("a", epoch, "active"))
    refused = catalog.do(register("a", STORAGE[1])).result
    assert refused.code == "COMPARE_FAILED"
    assert "another process runs under this node id" in refused.payload
    catalog.do(SetNodeState("a", epoch, "fenced"))
    assert not catalog.do(register("a", STORAGE[1])).result.code
    assert node(catalog, "a").storage_id == STORAGE[1]


def test_a_node_with_replicas_cannot_be_removed() -> None:
    catalog = cluster()
    assert catalog.do(RemoveNode("a")).result.code == "INVALID_ARGUMENT"
    catalog.do(RegisterNode("d", {}, "", "1", 1, False))
    assert not catalog.do(RemoveNode("d")).result.code
    assert catalog.do(RemoveNode("d")).result.code == "NOT_FOUND"


def test_a_node_with_heartbeats_begins_fenced_and_takes_no_replicas() -> None:
    catalog = cluster()
    catalog.do(RegisterNode("d", {}, "", "1", 1, True))
    catalog.do(CreateTopic("u", TOPIC_ID, 8, 1, {}))
    topic = catalog.topic("u")
    assert isinstance(topic, TopicDescription)
    assert "d" not in {p.leader for p in topic.partitions}


# ------------------------------------------------------------ in-sync sets


def test_the_leader_shrinks_and_grows_the_in_sync_set() -> None:
    catalog = cluster()
    leader = partition(catalog).leader
    assert leader is not None
    other = next(name for name in NODES if name != leader)
    assert catalog.do(in_sync_change(catalog, leader)).result.payload == 1
    assert partition(catalog).in_sync == (leader,)
    assert catalog.do(in_sync_change(catalog, leader, other)).result.payload == 2
    assert set(partition(catalog).in_sync) == {leader, other}
    assert partition(catalog).leader_epoch == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"leader_epoch": 7}, "COMPARE_FAILED"),
        ({"partition_epoch": 7}, "COMPARE_FAILED"),
        ({"leader": "nobody"}, "COMPARE_FAILED"),
        ({"topic_id": "1" * 32}, "NOT_FOUND"),
        ({"partition": 4}, "NOT_FOUND"),
        ({"in_sync": ("stranger",)}, "INVALID_ARGUMENT"),
    ],
)
def test_a_stale_or_wrong_change_is_refused(changes: dict[str, object], code: str) -> None:
    catalog = cluster()
    leader = partition(catalog).leader or ""
    assert catalog.do(in_sync_change(catalog, leader, **changes)).result.code == code
    assert partition(catalog).partition_epoch == 0


def test_the_leader_cannot_leave_the_in_sync_set() -> None:
    catalog = cluster()
    others = [name for name in NODES if name != partition(catalog).leader]
    assert catalog.do(in_sync_change(catalog, *others)).result.code == "INVALID_ARGUMENT"


def test_a_fenced_node_cannot_join_the_in_sync_set() -> None:
    catalog = cluster()
    leader = partition(catalog).leader or ""
    other = next(name for name in NODES if name != leader)
    catalog.do(in_sync_change(catalog, leader))
    set_state(catalog, other, "fenced")
    assert catalog.do(in_sync_change(catalog, leader, other)).result.code == "INVALID_ARGUMENT"


_states = st.dictionaries(
    st.sampled_from(NODES), st.sampled_from(["active", "fenced", "draining"]), max_size=3
)


@given(st.lists(st.tuples(_states, st.booleans(), st.sets(st.sampled_from(NODES))), max_size=12))
@settings(max_examples=examples(300))
def test_whatever_happens_no_acknowledged_record_is_given_up(
    events: list[tuple[dict[str, str], bool, set[str]]],
) -> None:
    """The leader is in sync, the set never empty, epochs tell every change."""
    old = PartitionDescription(0, "a", 0, 0, NODES, NODES)
    for states, preferred, wish in events:
        new = settle_below_cluster_level(old, states, preferred=preferred)
        assert new.in_sync and set(new.in_sync) <= set(old.in_sync)
        assert new.leader is None or new.leader in new.in_sync
        assert new.leader is None or states.get(new.leader) in ("active", "draining")
        assert (new.leader_epoch > old.leader_epoch) == (new.leader != old.leader)
        assert (new.partition_epoch > old.partition_epoch) == (new != old)
        again = settle_below_cluster_level(new, states, preferred=preferred)
        assert again == new, "settling twice changes nothing"
        if new.leader is not None:
            grown = tuple(n for n in NODES if n in wish | {new.leader})
            new = PartitionDescription(
                0, new.leader, new.leader_epoch, new.partition_epoch + 1, NODES, grown
            )
        old = new


# ------------------------------------------------------------ client sessions


def test_clients_that_are_silent_are_forgotten_by_uptime() -> None:
    catalog = Catalog()
    catalog.do(Tick(1_000_000))
    for client in (b"a" * 16, b"b" * 16):
        catalog.do(OpenSession(client))
        catalog.do(Txn((), ((b"k", b"v", 0),)), Header(client, 1, 0))
    for minute in range(1, 41):
        catalog.do(Tick(1_000_000 + minute * 60_000))
        catalog.do(Txn((), ((b"k", b"v", 0),)), Header(b"b" * 16, minute + 1, minute))
    assert catalog.do(ExpireSessions(30 * 60_000, 100)).result.payload == 1
    assert [key[1:] for key, _ in catalog.store.scan(SESSIONS)] == [b"b" * 16]
    assert len(list(catalog.store.scan(RESULTS))) == 1


def test_a_jump_of_the_clock_forgets_nobody() -> None:
    """The first tick, or a cluster that was down for a day."""
    catalog = Catalog()
    catalog.do(OpenSession(b"a" * 16))
    for now_ms in (1_000_000_000_000, 1_000_100_000_000):
        catalog.do(Tick(now_ms))
        assert catalog.do(ExpireSessions(30 * 60_000, 100)).result.payload == 0


# ------------------------------------------------------------ heartbeats


def registration(state: str, *, epoch: int = 1, heartbeats: bool = True) -> NodeRegistration:
    return NodeRegistration("n", {}, broker_epoch=epoch, state=state, heartbeats=heartbeats)


FENCE = NodeStateChange("n", 1, "fenced")
ACTIVATE = NodeStateChange("n", 1, "active")


def test_a_silent_node_is_fenced_in_time() -> None:
    detector = FailureDetector()
    detector.restart(0.0)
    detector.record_heartbeat("n", 1, 10.0, NodeReport())
    assert detector.state_changes([registration("active")], 10.0 + HEARTBEAT_TIMEOUT_S) == []
    late = 10.0 + HEARTBEAT_TIMEOUT_S + 0.01
    assert detector.state_changes([registration("active")], late) == [FENCE]
    assert HEARTBEAT_TIMEOUT_S + 0.1 + 0.1 < 2.5, (
        "with one step and a commit, a killed node is in time"
    )


def test_a_new_leader_gives_everybody_the_whole_time() -> None:
    detector = FailureDetector()
    detector.record_heartbeat("n", 1, 0.0, NodeReport())
    detector.restart(100.0)
    assert detector.state_changes([registration("active")], 100.0 + HEARTBEAT_TIMEOUT_S) == []
    assert detector.state_changes([registration("active")], 103.0) == [FENCE]


def test_a_node_that_left_is_not_active_again_by_what_it_sent_before() -> None:
    detector = FailureDetector()
    detector.record_heartbeat("n", 1, 1.0, NodeReport())
    detector.leave("n")
    assert detector.state_changes([registration("fenced")], 1.1) == []
    assert detector.loads() == {}


def test_the_first_heartbeat_makes_a_node_active() -> None:
    detector = FailureDetector()
    assert detector.state_changes([registration("fenced")], 1.0) == []
    detector.record_heartbeat("n", 1, 1.0, NodeReport({"records": 5.0}))
    assert detector.state_changes([registration("fenced")], 1.1) == [ACTIVATE]
    assert detector.loads()["n"] == {"records": 5.0}


def test_a_heartbeat_of_an_older_incarnation_does_not_count() -> None:
    detector = FailureDetector()
    detector.record_heartbeat("n", 1, 1.0, NodeReport())
    assert detector.state_changes([registration("fenced", epoch=2)], 1.1) == []


def test_a_node_without_heartbeats_is_never_judged() -> None:
    detector = FailureDetector()
    detector.restart(0.0)
    assert detector.state_changes([registration("active", heartbeats=False)], 1000.0) == []


def test_a_flapping_node_waits_longer_each_time() -> None:
    detector, now_s, waits = FailureDetector(), 0.0, []
    detector.restart(0.0)
    for _ in range(5):
        detector.record_heartbeat("n", 1, now_s, NodeReport())
        now_s += HEARTBEAT_TIMEOUT_S + 0.1
        assert detector.state_changes([registration("active")], now_s) == [FENCE]
        begin = now_s
        while True:
            detector.record_heartbeat("n", 1, now_s, NodeReport())
            if detector.state_changes([registration("fenced")], now_s):
                break
            now_s += 0.1
        waits.append(now_s - begin)
    assert waits[0] == pytest.approx(STABLE_S, abs=0.11)
    assert all(later > 1.8 * earlier for earlier, later in zip(waits, waits[1:], strict=False))


def test_a_node_that_hears_no_answers_is_fenced() -> None:
    detector = FailureDetector()
    detector.restart(0.0)
    detector.record_heartbeat("n", 1, 10.0, NodeReport())
    deaf = NodeReport(ready=False)
    detector.record_heartbeat("n", 1, 11.5, deaf)
    assert detector.state_changes([registration("active")], 11.9) == []
    detector.record_heartbeat("n", 1, 12.0, deaf)
    assert detector.state_changes([registration("active")], 12.1) == [FENCE]
    assert detector.state_changes([registration("fenced")], 12.1) == []
    detector.record_heartbeat("n", 1, 12.2, NodeReport())
    assert detector.state_changes([registration("fenced")], 12.2 + STABLE_S + 0.01) == [ACTIVATE]


def test_a_pause_breaks_the_calm() -> None:
    detector = FailureDetector()
    detector.restart(0.0)
    detector.state_changes([registration("active")], 10.0)
    detector.record_heartbeat("n", 1, 10.0, NodeReport())
    detector.record_heartbeat("n", 1, 11.5, NodeReport())
    assert detector.state_changes([registration("fenced")], 11.6) == []
    detector.record_heartbeat("n", 1, 12.0, NodeReport())
    assert detector.state_changes([registration("fenced")], 12.1) == [ACTIVATE]
