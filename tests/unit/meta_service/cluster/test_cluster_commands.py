"""Commands of level 4, each for itself: registrations, in-sync sets, elections, pages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakemq.meta_service.api.types import NodeRegistration, PartitionDescription
from lakemq.meta_service.catalog.commands import (
    CreateTopic,
    DeleteTopic,
    RegisterNode,
    RegisterStorage,
    SetFeatureLevel,
)
from lakemq.meta_service.catalog.control_commands import (
    ChangeInSync,
    ElectLeaders,
    RemoveNode,
    SetNodeState,
)
from lakemq.meta_service.catalog.moves import StartMoves
from lakemq.meta_service.catalog.nodes import decode_node, encode_node, node_key
from lakemq.meta_service.catalog.pages import rows
from lakemq.meta_service.catalog.pages.cluster import lost_key
from lakemq.meta_service.catalog.pages.commands import (
    AlterReplicatedTopic,
    ChangeInSyncMany,
    CreateReplicatedTopic,
    ElectUnclean,
    FinishMovesInPages,
    ForgetLost,
    LeaveNode,
    PageTopics,
    RegisterBroker,
    Resign,
    SettlePages,
)
from lakemq.meta_service.catalog.pages.rows import count_of, decode_page, page_ids, page_key
from lakemq.meta_service.catalog.tables import LEADER_COUNTS, MEMBER_COUNTS, REPLICA_COUNTS, unpack
from lakemq.meta_service.catalog.topics import topic_key
from tests.support.meta.catalog_rig import Catalog

ID = "ab" * 16
RAW = bytes.fromhex(ID)
NODES = ("a", "b", "c")


def broker(
    name: str, disk: int = 1, *, roles: tuple[str, ...] = (), disowned: int | None = None
) -> RegisterBroker:
    gone = () if disowned is None else ((RAW, disowned),)
    storage = f"{ord(name):016x}{disk:016x}"
    return RegisterBroker(name, {}, "", "1", 4, True, storage, roles, False, gone)


def node(catalog: Catalog, name: str) -> NodeRegistration:
    value = catalog.value(node_key(name))
    assert value is not None
    return decode_node(node_key(name), value)


def state(catalog: Catalog, name: str, wanted: str) -> str:
    """Error code."""
    epoch = node(catalog, name).broker_epoch
    return catalog.do(SetNodeState(name, epoch, wanted)).result.code


def cluster(replication: int = 3, partitions: int = 1, minimum: int = 2) -> Catalog:
    """Nodes a, b, c, active, and topic t on them, whose first partition a leads."""
    catalog = Catalog()
    catalog.do(SetFeatureLevel(4))
    assert catalog.do(PageTopics(100)).result.payload is True
    for name in NODES:
        catalog.do(broker(name))
        assert not state(catalog, name, "active")
    created = CreateReplicatedTopic("t", ID, partitions, replication, {}, (), minimum)
    assert not catalog.do(created).result.code
    return catalog


def settle(catalog: Catalog, *, preferred: bool = False) -> int:
    """Number of partitions that changed."""
    count = len(catalog.topic("t").partitions)
    changed = catalog.do(SettlePages(tuple(page_ids(ID, count)), preferred)).result.payload
    assert isinstance(changed, int)
    return changed


def partition(catalog: Catalog, number: int = 0) -> PartitionDescription:
    return catalog.topic("t").partitions[number]


def wish(catalog: Catalog, members: str, number: int = 0, **other: int) -> list[object]:
    """[code, partition epoch, in sync, leader, leader epoch]; `other`: epochs that are not those
    of the moment, of the partition or by node."""
    old = partition(catalog, number)
    sender = old.leader or "a"
    named = tuple((n, other.get(n, node(catalog, n).broker_epoch)) for n in members)
    change = (
        RAW, number, other.get("leader_epoch", old.leader_epoch),
        other.get("partition_epoch", old.partition_epoch), named,
    )  # fmt: skip
    epoch = other.get("sender", node(catalog, sender).broker_epoch)
    result = catalog.do(ChangeInSyncMany(sender, epoch, (change,))).result
    assert not result.code, result
    answer: list[object] = list(result.payload[0])
    return answer


# ------------------------------------------------------------ registrations (D4)


def test_a_registration_ends_the_leaderships_of_the_one_before() -> None:
    catalog = cluster()
    before = partition(catalog)
    assert before.leader == "a"
    catalog.do(broker("a"))
    assert (node(catalog, "a").state, node(catalog, "a").admitted) == ("fenced", False)
    assert state(catalog, "a", "active") == state(catalog, "a", "draining") == "COMPARE_FAILED"
    assert settle(catalog) == 1
    moved = partition(catalog)
    assert (moved.leader, moved.in_sync, moved.leader_epoch) == ("b", ("b", "c"), 1)
    assert not state(catalog, "a", "active")
    assert node(catalog, "a").admitted


def test_the_only_node_leads_again_in_another_epoch() -> None:
    catalog = cluster(replication=1, minimum=1)
    catalog.do(broker("a"))
    settle(catalog)
    between = partition(catalog)
    assert (between.leader, between.in_sync, between.eligible) == (None, (), ("a",))
    assert not state(catalog, "a", "active")
    settle(catalog)
    after = partition(catalog)
    assert (after.leader, after.in_sync, after.eligible, after.leader_epoch) == (
        "a", ("a",), (), 2,
    )  # fmt: skip


def test_a_node_that_is_not_heard_keeps_what_no_other_could_lead() -> None:
    catalog = cluster(replication=1, partitions=3, minimum=1)
    assert not state(catalog, "a", "fenced")
    assert settle(catalog) == 0
    assert not state(catalog, "a", "active"), "it goes on with the log that it has"
    led = [p.leader for p in catalog.topic("t").partitions]
    assert settle(catalog) == 0 and "a" in led


def test_a_node_that_leaves_keeps_nothing_and_never_comes_back() -> None:
    catalog = cluster(replication=1, minimum=1)
    epoch = node(catalog, "a").broker_epoch
    assert not catalog.do(LeaveNode("a", epoch)).result.code
    assert (node(catalog, "a").state, node(catalog, "a").leaving) == ("fenced", True)
    settle(catalog)
    assert partition(catalog).leader is None
    assert state(catalog, "a", "active") == "COMPARE_FAILED"
    catalog.do(broker("a"))
    assert not state(catalog, "a", "active")
    assert not node(catalog, "a").leaving
    assert catalog.do(LeaveNode("a", epoch)).result.code == "COMPARE_FAILED"


def test_an_empty_disk_is_a_member_of_nothing() -> None:
    catalog = cluster(replication=1, minimum=1)
    state(catalog, "a", "fenced")
    assert not catalog.do(broker("a", disk=2)).result.code
    assert catalog.value(lost_key("a")) is not None
    assert catalog.do(ForgetLost("a")).result.code == "COMPARE_FAILED"
    settle(catalog)
    gone = partition(catalog)
    assert (gone.leader, gone.in_sync, gone.eligible) == (None, (), ())
    assert state(catalog, "a", "active") == "COMPARE_FAILED", "the lost row is still there"
    assert catalog.do(ForgetLost("a")).result.payload is True
    assert not state(catalog, "a", "active")
    assert settle(catalog) == 0
    assert partition(catalog).leader is None, "an empty disk was elected"


def test_a_lost_disk_stays_lost_over_another_registration() -> None:
    catalog = cluster()
    state(catalog, "a", "fenced")
    catalog.do(broker("a", disk=2))
    catalog.do(broker("a", disk=2, disowned=0))
    settle(catalog)
    assert "a" not in (*partition(catalog).in_sync, *partition(catalog).eligible)
    assert catalog.do(ForgetLost("a")).result.payload is True
    assert catalog.do(ForgetLost("a")).result.payload is False


def test_a_damaged_replica_alone_is_given_up() -> None:
    catalog = cluster(partitions=2)
    catalog.do(broker("a", disowned=1))
    state_before = catalog.do(ForgetLost("a")).result.code
    assert state_before == "COMPARE_FAILED"
    settle(catalog)
    assert not catalog.do(ForgetLost("a")).result.code
    assert not state(catalog, "a", "active")
    assert count_of(catalog.draft(), MEMBER_COUNTS, "a") == 0, "fenced, with enough others"
    alone = cluster(partitions=2, replication=1, minimum=1)
    first = {p.leader: p.partition for p in alone.topic("t").partitions}
    alone.do(broker("a", disowned=first["a"]))
    settle(alone)
    assert partition(alone, first["a"]).eligible == ()


def test_the_disk_of_a_new_node_lost_nothing() -> None:
    catalog = Catalog()
    catalog.do(SetFeatureLevel(4))
    catalog.do(broker("a", disowned=3))
    assert catalog.value(lost_key("a")) is None


def test_a_node_is_let_in_when_old_topics_are_counted() -> None:
    catalog = Catalog()
    catalog.do(SetFeatureLevel(4))
    catalog.do(broker("a"))
    assert state(catalog, "a", "active") == "COMPARE_FAILED"
    catalog.do(PageTopics(1))
    assert not state(catalog, "a", "active")


@pytest.mark.parametrize(
    "command",
    [
        RegisterNode("a", {}, "", "1", 1, False),
        RegisterStorage("a", {}, "", "1", 1, True, "1" * 32),
    ],
)
def test_registrations_of_older_brokers_are_no_exception(command: RegisterNode) -> None:
    catalog = cluster()
    state(catalog, "a", "fenced")
    catalog.do(command)
    assert (node(catalog, "a").state, node(catalog, "a").admitted) == ("fenced", False)


def test_a_node_without_the_role_holds_no_replicas() -> None:
    catalog = cluster()
    catalog.do(broker("d", roles=("meta",)))
    state(catalog, "d", "active")
    catalog.do(CreateTopic("u", "cd" * 16, 8, 4, {}))
    assert all(set(p.replicas) == set(NODES) for p in catalog.topic("u").partitions)


def test_rows_of_nodes_are_those_of_old_where_nothing_is_new() -> None:
    old = NodeRegistration("a", {}, "r", "1", 3, 7, "active", True, "1" * 32)
    assert len(unpack(encode_node(old))) == 8
    assert len(unpack(encode_node(replace(old, storage_id="")))) == 7
    for each in (old, NodeRegistration("a", {}, roles=("meta",), clean=True, admitted=False)):
        assert decode_node(node_key("a"), encode_node(each)) == each


def test_a_removed_node_leaves_no_row() -> None:
    catalog = cluster()
    catalog.do(broker("d"))
    catalog.do(broker("d", disk=2))
    assert catalog.value(lost_key("d")) is not None
    assert not catalog.do(RemoveNode("d")).result.code
    assert catalog.value(lost_key("d")) is None
    assert catalog.do(RemoveNode("a")).result.code == "INVALID_ARGUMENT"


# ------------------------------------------------------------ in-sync sets


def test_a_smaller_set_keeps_the_leader_epoch() -> None:
    catalog = cluster()
    assert wish(catalog, "ab") == ["DONE", 1, ("a", "b"), "a", 0]
    assert partition(catalog).eligible == ()
    assert wish(catalog, "a") == ["DONE", 2, ("a",), "a", 0]
    assert partition(catalog).eligible == ("b",), "too few: b still has all that was acknowledged"
    assert wish(catalog, "ac") == ["DONE", 3, ("a", "c"), "a", 0]
    assert partition(catalog).eligible == ()


@pytest.mark.parametrize("other", [{"leader_epoch": 7}, {"partition_epoch": 7}, {"sender": 99}])
def test_what_was_wished_of_another_time_answers_what_holds(other: dict[str, int]) -> None:
    catalog = cluster()
    assert wish(catalog, "a", **other) == ["STALE", 0, ("a", "b", "c"), "a", 0]
    assert partition(catalog).partition_epoch == 0


def test_a_process_that_was_started_again_leads_nothing() -> None:
    catalog = cluster()
    catalog.do(broker("a"))
    assert wish(catalog, "ab")[0] == "STALE"


def test_only_the_process_that_was_heard_may_join() -> None:
    catalog = cluster()
    wish(catalog, "ab")
    before = node(catalog, "c").broker_epoch
    catalog.do(broker("c"))
    assert wish(catalog, "abc")[0] == "INELIGIBLE", "it is fenced (KIP-841)"
    assert not state(catalog, "c", "active")
    assert wish(catalog, "abc", c=before)[0] == "INELIGIBLE", "KIP-903"
    assert wish(catalog, "abc") == ["DONE", 2, ("a", "b", "c"), "a", 0]


def test_of_members_that_stay_no_epoch_is_asked() -> None:
    catalog = cluster()
    assert wish(catalog, "ab", b=0)[0] == "DONE"


@pytest.mark.parametrize("members", ["bc", "abd", ""])
def test_the_set_names_the_leader_and_replicas_only(members: str) -> None:
    catalog = cluster()
    catalog.do(broker("d"))
    assert wish(catalog, members)[0] == "INELIGIBLE"


def test_changes_are_answered_one_by_one() -> None:
    catalog = cluster(partitions=3)
    led = [p.partition for p in catalog.topic("t").partitions if p.leader == "a"]
    members = (("a", 0), ("b", 0))
    changes = [(RAW, led[0], 0, 0, members), (RAW, led[0], 0, 0, members), (RAW, 9, 0, 0, members)]
    changes.append((b"\x01" * 16, 0, 0, 0, members))
    epoch = node(catalog, "a").broker_epoch
    answers = catalog.do(ChangeInSyncMany("a", epoch, tuple(changes))).result.payload
    assert [answer[0] for answer in answers] == ["DONE", "STALE", "UNKNOWN", "UNKNOWN"]


def test_a_draining_leader_gives_way_to_who_joins() -> None:
    catalog = cluster()
    wish(catalog, "a")
    state(catalog, "a", "draining")
    settle(catalog)
    assert partition(catalog).leader == "a"
    answer = wish(catalog, "ab")
    assert answer[0] == "DONE" and answer[3] == "b"


def test_commands_of_whole_topics_are_over() -> None:
    catalog = cluster()
    assert catalog.do(ElectLeaders(("t",), False)).result.code == "UNSUPPORTED_COMMAND"
    change = ChangeInSync("t", ID, 0, "a", 0, 0, ("a",))
    assert catalog.do(change).result.code == "UNSUPPORTED_COMMAND"


# ------------------------------------------------------------ leaders


def test_a_leader_resigns() -> None:
    catalog = cluster()
    epoch = node(catalog, "a").broker_epoch
    assert catalog.do(Resign("a", epoch, ((RAW, 0, 5),))).result.payload == 0
    assert catalog.do(Resign("a", epoch, ((RAW, 0, 0), (RAW, 7, 0)))).result.payload == 1
    assert (partition(catalog).leader, partition(catalog).leader_epoch) == ("b", 1)
    assert partition(catalog).in_sync == NODES
    assert catalog.do(Resign("a", epoch - 1, ((RAW, 0, 1),))).result.code == "COMPARE_FAILED"


@pytest.mark.parametrize(("avoid", "leader"), [((), "b"), (("b",), "c"), (("b", "c"), "b")])
@pytest.mark.parametrize("resigns", [False, True])
def test_a_full_node_is_elected_only_where_no_other_can_lead(
    avoid: tuple[str, ...], leader: str, resigns: bool
) -> None:
    """As the last one it is: the partition is read, and its records are kept."""
    catalog = cluster()
    if resigns:
        epoch = node(catalog, "a").broker_epoch
        assert catalog.do(Resign("a", epoch, ((RAW, 0, 0),), avoid)).result.payload == 1
    else:
        state(catalog, "a", "fenced")
        pages = tuple(page_ids(ID, len(catalog.topic("t").partitions)))
        catalog.do(SettlePages(pages, False, avoid))
    assert partition(catalog).leader == leader


def test_a_full_leader_stays_and_a_full_node_gets_nothing_back() -> None:
    """The one resigns by itself where another can take over; the other would resign at once."""
    catalog = cluster()
    pages = tuple(page_ids(ID, len(catalog.topic("t").partitions)))
    assert catalog.do(SettlePages(pages, False, ("a",))).result.payload == 0
    epoch = node(catalog, "a").broker_epoch
    catalog.do(Resign("a", epoch, ((RAW, 0, 0),)))
    catalog.do(SettlePages(pages, True, ("a",)))
    assert partition(catalog).leader == "b"
    catalog.do(SettlePages(pages, True))
    assert partition(catalog).leader == "a"


def test_an_unclean_leader_is_elected_by_name_only() -> None:
    catalog = cluster()
    wish(catalog, "ab")
    wish(catalog, "a")
    for name in "ab":
        state(catalog, name, "fenced")
    settle(catalog)
    lost = partition(catalog)
    assert (lost.leader, lost.eligible) == (None, ("b", "a"))

    def elect(name: str, epoch: int, number: int = 0, topic: str = "t") -> str:
        return catalog.do(ElectUnclean(topic, number, epoch, name)).result.code

    assert elect("c", lost.partition_epoch - 1) == "COMPARE_FAILED"
    assert elect("b", lost.partition_epoch) == "INVALID_ARGUMENT", "it is fenced"
    assert elect("x", lost.partition_epoch) == "INVALID_ARGUMENT"
    assert elect("c", lost.partition_epoch, 4) == "NOT_FOUND"
    assert elect("c", lost.partition_epoch, 0, "u") == "NOT_FOUND"
    assert elect("c", lost.partition_epoch) == ""
    now = partition(catalog)
    assert (now.leader, now.in_sync, now.eligible) == ("c", ("c",), ())
    assert now.leader_epoch == lost.leader_epoch + 1
    assert elect("c", now.partition_epoch) == "COMPARE_FAILED", "it has a leader"


def test_a_topic_that_asks_for_it_elects_who_lacks_records() -> None:
    catalog = cluster(minimum=1)
    wish(catalog, "a")
    state(catalog, "a", "fenced")
    settle(catalog)
    assert partition(catalog).leader == "a", "no other could lead"
    config = {"unclean_leader_election": 1}
    catalog.do(AlterReplicatedTopic("t", None, config, (), None, None))
    assert partition(catalog).leader == "b"


# ------------------------------------------------------------ topics


def test_the_minimum_changes_with_the_sets_that_it_judges() -> None:
    catalog = cluster()
    wish(catalog, "ab")
    wish(catalog, "a")
    assert partition(catalog).eligible == ("b",)
    catalog.do(AlterReplicatedTopic("t", 2, None, (), None, 1))
    assert [p.min_in_sync for p in catalog.topic("t").partitions] == [1, 1]
    assert partition(catalog).eligible == ()
    assert partition(catalog).partition_epoch > 3
    code = catalog.do(AlterReplicatedTopic("t", None, None, (), 1, 2)).result.code
    assert code == "INVALID_ARGUMENT"
    assert not catalog.do(AlterReplicatedTopic("t", None, None, (), 2, 2)).result.code
    assert (catalog.topic("t").replication, catalog.topic("t").min_in_sync) == (2, 2)


def test_a_move_gives_up_nobody_who_has_everything() -> None:
    catalog = cluster()
    wish(catalog, "ab")
    wish(catalog, "a")
    catalog.do(broker("d"))
    state(catalog, "d", "active")
    old = partition(catalog)
    assert old.eligible == ("b",)
    catalog.do(StartMoves((("t", ID, 0, old.partition_epoch, ("d", "c")),)))
    moving = partition(catalog)
    assert set(moving.replicas) == {"a", "b", "c", "d"} and moving.eligible == ("b",)
    pages = tuple(page_ids(ID, 1))
    assert catalog.do(FinishMovesInPages(pages)).result.payload == []
    wish(catalog, "acd")
    assert catalog.do(FinishMovesInPages(pages)).result.payload == [["t", 0]]
    done = partition(catalog)
    assert (done.replicas, set(done.in_sync), done.eligible) == (("d", "c"), {"c", "d"}, ())
    assert done.leader == "d"


def test_moves_read_and_write_only_the_pages_of_their_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog = cluster(partitions=100, replication=2)
    read: list[bytes] = []

    def decode(page: bytes, value: bytes) -> rows.Page:
        read.append(page)
        return decode_page(page, value)

    def target(number: int) -> tuple[str, ...]:
        return tuple(reversed(partition(catalog, number).replicas))

    moves = [("t", ID, number, 0, target(number)) for number in (40, 41, 98)]
    stale, gone = ("t", ID, 2, 7, ("a", "b")), ("t", ID, 400, 0, ("a", "b"))
    again, renamed = ("t", "12" * 16, 0, 0, ("a", "b")), ("u", ID, 1, 0, ("a", "b"))
    monkeypatch.setattr(rows, "decode_page", decode)
    applied = catalog.do(StartMoves((*moves, stale, gone, again, renamed)))
    monkeypatch.undo()
    assert applied.result.payload == [["t", 40], ["t", 41], ["t", 98]]
    pages = page_ids(ID, 100)
    assert [key for key, _ in applied.rows] == [page_key(pages[1]), page_key(pages[3])]
    assert sorted(read) == [pages[0], pages[1], pages[3]]
    assert [partition(catalog, n).replicas for n in (40, 41, 98)] == [m[4] for m in moves]


# ------------------------------------------------------------ pages


def test_one_change_rewrites_one_page() -> None:
    catalog = cluster(partitions=100)
    assert [len(catalog.value(page_key(p)) or b"") > 0 for p in page_ids(ID, 100)] == [True] * 4
    old = partition(catalog, 40)
    change = (RAW, 40, 0, 0, ((old.leader or "", 0),))
    epoch = node(catalog, old.leader or "").broker_epoch
    applied = catalog.do(ChangeInSyncMany(old.leader or "", epoch, (change,)))
    assert [key for key, _ in applied.rows] == [page_key(page_ids(ID, 100)[1])]
    assert partition(catalog, 40).in_sync == (old.leader,)


def test_counters_follow_the_pages_and_go_with_them() -> None:
    catalog = cluster(partitions=40, replication=2, minimum=1)
    draft = catalog.draft()
    assert sum(count_of(draft, LEADER_COUNTS, name) for name in NODES) == 40
    assert sum(count_of(draft, REPLICA_COUNTS, name) for name in NODES) == 80
    assert sum(count_of(draft, MEMBER_COUNTS, name) for name in NODES) == 80
    catalog.do(DeleteTopic("t"))
    rows = {key[:1] for key in catalog.store.rows}
    assert not rows & {LEADER_COUNTS, MEMBER_COUNTS, REPLICA_COUNTS, b"N"}
    assert all(catalog.value(page_key(page)) is None for page in page_ids(ID, 40))


def old_cluster() -> Catalog:
    """Topics of level 3, in one row each."""
    catalog = Catalog()
    catalog.do(SetFeatureLevel(3))
    for name in NODES:
        catalog.do(RegisterNode(name, {}, "", "1", 3, False))
    for number, name in enumerate("tuv"):
        catalog.do(CreateTopic(name, f"{number + 1:032x}", 40, 2, {"x": number}))
    return catalog


def test_topics_of_level_three_move_to_pages_some_at_a_time() -> None:
    catalog = old_cluster()
    before = {name: catalog.topic(name) for name in "tuv"}
    counts = {name: count_of(catalog.draft(), REPLICA_COUNTS, name) for name in NODES}
    catalog.do(SetFeatureLevel(4))
    answers = [catalog.do(PageTopics(40)).result.payload for _ in range(4)]
    assert answers == [False, False, True, True]
    for name, old in before.items():
        assert catalog.topic(name).partitions == old.partitions
        assert catalog.topic(name).config == old.config
    after = {name: count_of(catalog.draft(), REPLICA_COUNTS, name) for name in NODES}
    assert after == counts
    assert sum(count_of(catalog.draft(), LEADER_COUNTS, name) for name in NODES) == 120


def test_a_topic_moves_to_pages_when_it_is_altered() -> None:
    catalog = old_cluster()
    catalog.do(SetFeatureLevel(4))
    long_ago = len(catalog.value(topic_key("t")) or b"")
    catalog.do(AlterReplicatedTopic("t", 41, None, (), None, None))
    assert len(catalog.value(topic_key("t")) or b"") < long_ago / 10
    assert len(catalog.topic("t").partitions) == 41
    catalog.do(DeleteTopic("u"))
    catalog.do(PageTopics(1000))
    held = sum(count_of(catalog.draft(), REPLICA_COUNTS, name) for name in NODES)
    assert held == 2 * (41 + 40)


def test_partitions_without_a_node_are_placed_when_one_comes() -> None:
    catalog = Catalog()
    catalog.do(SetFeatureLevel(3))
    catalog.do(CreateTopic("old", "01" * 16, 2, 1, {}))
    catalog.do(SetFeatureLevel(4))
    catalog.do(CreateTopic("new", "02" * 16, 33, 1, {}))
    catalog.do(broker("a"))
    for name in ("old", "new"):
        assert all(p.replicas == ("a",) for p in catalog.topic(name).partitions), name
        assert all(p.leader is None for p in catalog.topic(name).partitions), "it is not let in"
    assert not [key for key in catalog.store.rows if key.startswith(b"N\x00")]
