"""Plans that level a cluster, and replicas on their way: rules and properties."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.broker_core.api.state.internal_topics import SHARED, is_node_own
from lakemq.meta_service.api.types import (
    PROCESS_ROLE,
    NodeRegistration,
    PartitionDescription,
    TopicDescription,
    is_brokers_own,
    machine_of,
)
from lakemq.meta_service.catalog.commands import (
    CreateTopic,
    GrowTopic,
    PlaceTopic,
    RegisterNode,
    SetFeatureLevel,
)
from lakemq.meta_service.catalog.control_commands import ChangeInSync, RemoveNode, SetNodeState
from lakemq.meta_service.catalog.moves import FinishMoves, SetRebalance, StartMoves
from lakemq.meta_service.catalog.nodes import Candidate, place
from lakemq.meta_service.catalog.pages.whole_topics import settle_topic
from lakemq.meta_service.catalog.partitions import UNCLEAN, settle_below_cluster_level
from lakemq.meta_service.catalog.tables import REPLICA_COUNTS, decode_number
from lakemq.meta_service.control.balance import PlannedMove, plan
from tests.support.meta.catalog_rig import Catalog
from tests.support.seeds import examples

TOPIC_ID = "0" * 32


def node(name: str, rack: str = "", state: str = "active") -> NodeRegistration:
    return NodeRegistration(name, {}, rack, state=state)


def topic(*replicas: tuple[str, ...], replication: int = 0) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(number, each[0], 0, 0, each, each)
        for number, each in enumerate(replicas)
    )
    return TopicDescription("t", TOPIC_ID, partitions, {}, 1, replication)


def after(before: TopicDescription, moves: list[PlannedMove]) -> TopicDescription:
    """The topic when all moves have come to their end."""
    targets = {move.partition: move.target for move in moves}
    return replace(
        before,
        partitions=tuple(
            replace(p, replicas=targets.get(p.partition, p.replicas)) for p in before.partitions
        ),
    )


def counts(topic: TopicDescription, names: list[str]) -> list[int]:
    held = Counter(n for p in topic.partitions for n in p.replicas)
    return [held[name] for name in names]


def copies(moves: list[PlannedMove]) -> int:
    return sum(move.copies for move in moves)


# ------------------------------------------------------------ examples


def test_a_level_cluster_needs_no_move() -> None:
    assert plan([topic(("a", "b"), ("b", "a"))], [node("a"), node("b")]) == []


def test_a_new_node_takes_its_share_and_no_more() -> None:
    old = topic(*[("a",), ("b",)] * 3)
    moves = plan([old], [node("a"), node("b"), node("c")])
    assert copies(moves) == 2
    assert counts(after(old, moves), ["a", "b", "c"]) == [2, 2, 2]


@pytest.mark.parametrize("how", ["draining", "leaving", "gone"])
def test_replicas_leave_a_node_and_nothing_else_moves(how: str) -> None:
    nodes = [node("a"), node("b"), node("c", state="draining" if how == "draining" else "active")]
    if how == "gone":
        nodes.pop()
    old = topic(("a", "b"), ("b", "c"), ("c", "a"))
    moves = plan([old], nodes, ["c"] if how == "leaving" else [])
    assert copies(moves) == 2
    assert counts(after(old, moves), ["a", "b", "c"]) == [3, 3, 0]


def test_a_fenced_node_keeps_what_it_has_and_takes_nothing() -> None:
    old = topic(("a",), ("a",), ("a",), ("b",))
    assert plan([old], [node("a"), node("b", state="fenced")]) == []


def test_replicas_stay_where_they_would_have_nowhere_to_go() -> None:
    old = topic(("a", "b"), ("b", "a"))
    assert plan([old], [node("a"), node("b", state="draining")]) == []
    assert plan([old], [node("a", state="draining"), node("b", state="draining")]) == []


def test_too_few_replicas_become_as_many_as_the_topic_wants() -> None:
    old = topic(("a",), ("a",), replication=2)
    moves = plan([old], [node("a"), node("b")])
    assert copies(moves) == 2
    assert counts(after(old, moves), ["a", "b"]) == [2, 2]


def test_replicas_of_a_partition_go_to_unused_racks() -> None:
    old = topic(("a", "b"))
    moves = plan([old], [node("a", "r1"), node("b", "r1"), node("c", "r2")])
    (move,) = moves
    assert move.copies == 1 and "c" in move.target


def test_what_every_node_has_of_its_own_does_not_move() -> None:
    for name in ("__retained", "__audit"):
        assert is_brokers_own(name) and is_node_own(name)
        old = replace(topic(*[("a",)] * 4), name=name)
        assert plan([old], [node("a"), node("b")]) == []


def test_what_nodes_share_moves() -> None:
    assert SHARED
    for name in SHARED:
        assert not is_brokers_own(name) and not is_node_own(name)
        old = replace(topic(*[("a",)] * 4), name=name)
        assert counts(after(old, plan([old], [node("a"), node("b")])), ["a", "b"]) == [2, 2]


def test_a_full_node_takes_nothing() -> None:
    old = topic(*[("a",)] * 4)
    nodes = [node("a"), node("b"), node("c")]
    moves = plan([old], nodes, loads={"b": {"disk_used_ratio": 0.95}})
    assert counts(after(old, moves), ["a", "b", "c"]) == [2, 0, 2]


def test_of_alike_nodes_the_one_with_fewer_bytes_takes_more() -> None:
    old = topic(*[("a",)] * 2)
    nodes = [node("a"), node("b"), node("c")]
    (move,) = plan([old], nodes, loads={"b": {"stored_bytes": 1e6}})
    assert move.target == ("c",)


def test_leadership_is_evened_out_without_copies() -> None:
    old = topic(*[("a", "b")] * 4)
    moves = plan([old], [node("a"), node("b")])
    assert (len(moves), copies(moves)) == (2, 0)


def test_a_partition_under_way_counts_as_being_there() -> None:
    old = topic(*[("a",)] * 4)
    nodes = [node("a"), node("b")]
    moving = replace(
        old,
        partitions=tuple(
            replace(p, replicas=("a", "b"), target=("b",)) if p.partition < 2 else p
            for p in old.partitions
        ),
    )
    assert plan([moving], nodes) == []


# ------------------------------------------------------------ properties

_names = ["a", "b", "c", "d", "e"]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[TopicDescription, list[NodeRegistration], list[str]]:
    size = draw(st.integers(1, 5))
    states = st.sampled_from(["active", "active", "active", "fenced", "draining"])
    racks = draw(st.booleans())
    nodes = [
        node(name, draw(st.sampled_from(["r1", "r2", "r3"])) if racks else "", draw(states))
        for name in _names[:size]
    ]
    replicas = st.lists(
        st.sampled_from(_names[:size]), min_size=1, max_size=min(3, size), unique=True
    ).map(tuple)
    old = topic(*draw(st.lists(replicas, min_size=1, max_size=10)))
    leaving = draw(st.lists(st.sampled_from(_names[:size]), max_size=1))
    return old, nodes, leaving


@given(clusters())
@settings(max_examples=examples(300))
def test_no_plan_takes_replicas_away_or_doubles_them(
    cluster: tuple[TopicDescription, list[NodeRegistration], list[str]],
) -> None:
    old, nodes, leaving = cluster
    new = after(old, plan([old], nodes, leaving))
    takers = {n.node_id for n in nodes if n.state == "active"} - set(leaving)
    for was, now in zip(old.partitions, new.partitions, strict=True):
        assert len(now.replicas) >= len(was.replicas)
        assert len(set(now.replicas)) == len(now.replicas)
        assert set(now.replicas) - set(was.replicas) <= takers


@given(clusters())
@settings(max_examples=examples(300))
def test_when_all_has_moved_nothing_is_left_to_move(
    cluster: tuple[TopicDescription, list[NodeRegistration], list[str]],
) -> None:
    old, nodes, leaving = cluster
    new = after(old, plan([old], nodes, leaving))
    assert plan([new], nodes, leaving) == []


@given(clusters())
@settings(max_examples=examples(300))
def test_racks_are_used_as_well_as_they_can(
    cluster: tuple[TopicDescription, list[NodeRegistration], list[str]],
) -> None:
    old, nodes, leaving = cluster
    racks = {n.node_id: n.rack for n in nodes}
    takers = {n.node_id for n in nodes if n.state == "active"} - set(leaving)
    for partition in after(old, plan([old], nodes, leaving)).partitions:
        used = [racks[n] for n in partition.replicas]
        can_move = [n for n in partition.replicas if n in takers and used.count(racks[n]) > 1]
        unused = {racks[n] for n in takers} - set(used)
        assert not (can_move and unused), partition


@given(st.integers(1, 5), st.lists(st.integers(0, 4), min_size=1, max_size=25))
def test_single_replicas_move_as_little_as_possible(size: int, homes: list[int]) -> None:
    names = _names[:size]
    old = topic(*[(names[home % size],) for home in homes])
    moves = plan([old], [node(name) for name in names])
    had, low = counts(old, names), len(homes) // size
    high = -(-len(homes) // size)
    least = max(sum(max(0, n - high) for n in had), sum(max(0, low - n) for n in had))
    assert copies(moves) == least
    held = counts(after(old, moves), names)
    assert max(held) - min(held) <= 1


@given(
    st.lists(
        st.lists(st.sampled_from(_names[:3]), min_size=2, max_size=2, unique=True).map(tuple),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=examples(60))
def test_pairs_move_as_little_as_any_plan_could(homes: list[tuple[str, ...]]) -> None:
    """Against every way to place them: no level one needs fewer copies."""
    names = _names[:3]
    old = topic(*homes)
    moves = plan([old], [node(name) for name in names])
    held = counts(after(old, moves), names)
    assert max(held) - min(held) <= 1
    pairs = list(itertools.combinations(names, 2))
    least = min(
        sum(len(set(new) - set(was)) for was, new in zip(homes, way, strict=True))
        for way in itertools.product(pairs, repeat=len(homes))
        if _is_level([n for pair in way for n in pair], names)
    )
    assert copies(moves) == least


def _is_level(placed: list[str], names: list[str]) -> bool:
    held = [placed.count(name) for name in names]
    return max(held) - min(held) <= 1


# ------------------------------------------------------------ moving, in the catalog


def cluster(*names: str, partitions: int = 1, replication: int = 2) -> Catalog:
    """The topic lies on the first nodes; the last one registers after it was made."""
    catalog = Catalog()
    catalog.do(SetFeatureLevel(2))
    for name in names[:-1]:
        catalog.do(RegisterNode(name, {}, "", "1", 1, False))
    catalog.do(CreateTopic("t", TOPIC_ID, partitions, replication, {}))
    catalog.do(RegisterNode(names[-1], {}, "", "1", 1, False))
    return catalog


def partition(catalog: Catalog) -> PartitionDescription:
    found = catalog.topic("t")
    assert isinstance(found, TopicDescription)
    return found.partitions[0]


def move(catalog: Catalog, *target: str, epoch: int | None = None) -> list[list[object]]:
    if epoch is None:
        epoch = partition(catalog).partition_epoch
    result = catalog.do(StartMoves((("t", TOPIC_ID, 0, epoch, target),))).result
    assert not result.code, result
    begun: list[list[object]] = result.payload
    return begun


def join(catalog: Catalog, *in_sync: str) -> None:
    now = partition(catalog)
    change = ChangeInSync(
        "t", TOPIC_ID, 0, now.leader or "", now.leader_epoch, now.partition_epoch, in_sync
    )
    assert not catalog.do(change).result.code


def finish(catalog: Catalog) -> list[list[object]]:
    done: list[list[object]] = catalog.do(FinishMoves(("t",))).result.payload
    return done


def replica_counts(catalog: Catalog, names: str) -> list[int]:
    return [decode_number(catalog.store.get(REPLICA_COUNTS + name.encode())) for name in names]


def test_a_move_adds_waits_and_removes() -> None:
    catalog = cluster("a", "b", "c")
    assert move(catalog, "b", "c") == [["t", 0]]
    now = partition(catalog)
    assert (now.replicas, now.in_sync, now.target) == (("a", "b", "c"), ("a", "b"), ("b", "c"))
    assert now.leader == "a"
    assert replica_counts(catalog, "abc") == [1, 1, 1]
    assert finish(catalog) == []
    join(catalog, "a", "b", "c")
    epochs = partition(catalog).leader_epoch, partition(catalog).partition_epoch
    assert finish(catalog) == [["t", 0]]
    now = partition(catalog)
    assert (now.replicas, now.in_sync, now.target) == (("b", "c"), ("b", "c"), ())
    assert now.leader == "b"
    assert (now.leader_epoch, now.partition_epoch) == (epochs[0] + 1, epochs[1] + 1)
    assert replica_counts(catalog, "abc") == [0, 1, 1]
    assert not catalog.do(RemoveNode("a")).result.code


def test_a_move_decided_on_old_news_does_nothing() -> None:
    catalog = cluster("a", "b", "c")
    join(catalog, "a")
    assert move(catalog, "b", "c", epoch=0) == []
    assert partition(catalog).target == ()
    stranger = StartMoves((("t", TOPIC_ID, 0, 1, ("x",)),))
    assert catalog.do(stranger).result.code == "INVALID_ARGUMENT"
    assert catalog.do(StartMoves((("gone", TOPIC_ID, 0, 1, ("a",)),))).result.payload == []
    assert catalog.do(StartMoves((("t", "1" * 32, 0, 1, ("a",)),))).result.payload == []


def test_a_move_can_be_called_back() -> None:
    catalog = cluster("a", "b", "c")
    move(catalog, "b", "c")
    move(catalog, "a", "b")
    now = partition(catalog)
    assert (now.replicas, now.in_sync) == (("a", "b"), ("a", "b"))
    assert finish(catalog) == [["t", 0]]
    assert partition(catalog).target == ()


def test_nobody_takes_over_who_cannot_lead() -> None:
    catalog = cluster("a", "b", "c", replication=1)
    move(catalog, "c")
    join(catalog, "a", "c")
    catalog.do(SetNodeState("c", 4, "fenced"))
    assert finish(catalog) == []
    assert partition(catalog).leader == "a"


def test_a_change_of_order_takes_effect_at_once() -> None:
    catalog = cluster("a", "b", "c")
    move(catalog, "b", "a")
    now = partition(catalog)
    assert (now.replicas, now.target, now.leader) == (("b", "a"), (), "a")


_steps = st.one_of(
    st.tuples(
        st.just("move"),
        st.lists(st.sampled_from("abcd"), min_size=2, max_size=3, unique=True).map(tuple),
    ),
    st.tuples(st.just("sync"), st.lists(st.sampled_from("abcd"), max_size=4, unique=True)),
    st.tuples(st.just("finish"), st.none()),
)


@given(st.lists(_steps, max_size=12))
def test_replicas_and_those_in_sync_never_become_too_few(steps: list[tuple[str, object]]) -> None:
    catalog = cluster("a", "b", "c", "d", replication=2)
    for what, value in steps:
        before = partition(catalog)
        if what == "move":
            assert isinstance(value, tuple)
            move(catalog, *value)
        elif what == "finish":
            finish(catalog)
        else:
            assert isinstance(value, list)
            wanted = {*value, before.leader}
            join(catalog, *[n for n in before.replicas if n in wanted])
        now = partition(catalog)
        assert len(now.replicas) >= 2
        assert now.leader in now.in_sync and set(now.in_sync) <= set(now.replicas)
        if what == "move":
            assert now.in_sync == before.in_sync, "a move gives up nothing that is in sync"
        if before.target and not now.target and what == "finish":
            assert set(now.in_sync) == set(before.target)
        assert sum(replica_counts(catalog, "abcd")) == len(now.replicas)


def test_a_rebalance_is_remembered_until_it_is_stopped() -> None:
    catalog = cluster("a", "b", "c")
    catalog.do(SetRebalance(True, ("a",), 5))
    assert catalog.value(b"\x00rebalance") is not None
    catalog.do(SetRebalance(False, (), 1))
    assert catalog.value(b"\x00rebalance") is None


def test_a_topic_is_made_on_full_nodes_only_where_there_are_too_few_others() -> None:
    catalog = cluster("a", "b", "c")
    assert not catalog.do(PlaceTopic("u", "1" * 32, 4, 1, {}, ("a",))).result.code
    found = catalog.topic("u")
    assert isinstance(found, TopicDescription)
    assert {p.leader for p in found.partitions} == {"b", "c"}
    assert not catalog.do(GrowTopic("u", 6, None, ("b",))).result.code
    found = catalog.topic("u")
    assert isinstance(found, TopicDescription)
    assert "b" not in {p.leader for p in found.partitions[4:]}
    assert not catalog.do(PlaceTopic("v", "2" * 32, 1, 3, {}, ("a",))).result.code
    found = catalog.topic("v")
    assert isinstance(found, TopicDescription)
    assert set(found.partitions[0].replicas) == {"a", "b", "c"}


# ------------------------------------------------------------ unclean elections


def test_nobody_out_of_sync_leads_unless_the_topic_wants_it() -> None:
    lost = PartitionDescription(0, "a", 3, 7, ("a", "b"), ("a",))
    states = {"a": "fenced", "b": "active"}
    assert settle_below_cluster_level(lost, states, preferred=False).leader is None
    kept = settle_below_cluster_level(lost, states, preferred=False, unclean=True)
    assert (kept.leader, kept.in_sync, kept.leader_epoch) == ("b", ("b",), 4)


@pytest.mark.parametrize(
    ("config", "level", "leader"),
    [
        ({}, 2, None),
        ({UNCLEAN: 0}, 2, None),
        ({UNCLEAN: 1}, 2, "b"),
        ({UNCLEAN: 1}, 1, None),
        ({}, 3, "a"),
        ({UNCLEAN: 1}, 3, "b"),
    ],
)
def test_unclean_elections_are_off_by_default(
    config: dict[str, str | int | None], level: int, leader: str | None
) -> None:
    lost = replace(topic(("a", "b")), config=config)
    lost = replace(lost, partitions=(replace(lost.partitions[0], in_sync=("a",)),))
    states = {"a": "fenced", "b": "active"}
    settled = settle_topic(lost, states, preferred=False, level=level)
    assert settled.partitions[0].leader == leader


def process(name: str, machine: str, rack: str = "") -> NodeRegistration:
    return NodeRegistration(
        name, {}, f"{rack}/{machine}".removeprefix("/"), roles=("broker", PROCESS_ROLE)
    )


PROCESSES = [
    process("a", "m1", "r1"),
    process("a.p2", "m1", "r1"),
    process("b", "m2", "r1"),
    process("b.p2", "m2", "r1"),
    process("c", "m3", "r2"),
    process("c.p2", "m3", "r2"),
]
MACHINES = {each.node_id: machine_of(each) for each in PROCESSES}


@pytest.mark.parametrize(("replication", "machines"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_replicas_count_machines_and_not_processes(replication: int, machines: int) -> None:
    candidates = [Candidate(each.node_id, each.rack, machine_of(each)) for each in PROCESSES]
    placed = place(candidates, {}, 60, replication)
    assert {len({MACHINES[name] for name in each}) for each in placed} == {machines}
    assert {len(each) for each in placed} == {machines}
    # Two of them lie in different racks, while there are two, though machines of one are as empty.
    if replication == 2:
        assert all({"c", "c.p2"}.intersection(each) for each in placed)


@given(
    st.lists(
        st.lists(st.sampled_from(sorted(MACHINES)), min_size=1, max_size=3, unique_by=MACHINES.get),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from(sorted(MACHINES)),
)
@settings(max_examples=examples(100), deadline=None)
def test_no_plan_puts_two_replicas_on_a_machine(homes: list[list[str]], leaving: str) -> None:
    before = topic(*map(tuple, homes), replication=3)
    planned = plan([before], PROCESSES, leaving=[leaving])
    for partition in after(before, planned).partitions:
        machines = [MACHINES[name] for name in partition.replicas]
        assert len(machines) == len(set(machines)), partition.replicas


def test_a_process_may_take_over_what_another_one_of_its_machine_has() -> None:
    before = topic(*[("a",)] * 6)
    moved = after(before, plan([before], PROCESSES[:2]))
    assert Counter(each.replicas for each in moved.partitions) == {("a",): 3, ("a.p2",): 3}


def test_each_topic_is_spread_and_not_only_the_sum_of_all() -> None:
    def of(number: int, count: int) -> TopicDescription:
        return replace(topic(*[("a",)] * count), name=f"t{number}", topic_id=f"{number:032x}")

    topics = [of(1, 40), of(2, 4), of(3, 6), of(4, 2)]
    planned = plan(topics, [node("a"), node("b")])
    moved = Counter(move.topic for move in planned)
    assert moved == {"t1": 20, "t2": 2, "t3": 3, "t4": 1}
