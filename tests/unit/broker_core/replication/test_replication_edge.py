"""Goal: what the cores of leaders and followers decide reaches logs and streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from lakemq.broker_core.api.errors import CorruptLog, NotLeader, StorageFenced, StorageFull
from lakemq.broker_core.api.types import Acks, Offset
from lakemq.broker_core.replication import following as following_module
from lakemq.broker_core.replication import manager
from lakemq.broker_core.replication.types import Place, WishAnswer, WishCode
from tests.support.replication.nodes import PLACE, TestCluster


@pytest.fixture
async def cluster() -> AsyncIterator[TestCluster]:
    cluster = TestCluster()
    yield cluster
    await cluster.stop()


def same(cluster: TestCluster, place: Place = PLACE) -> bool:
    """All replicas have the same records, and know it."""
    logs = [node.log(place) for node in cluster.nodes.values()]
    return (
        len({tuple(log.values()) for log in logs}) == 1
        and len({(log.durable_end, log.high_watermark, log.log_start_offset) for log in logs}) == 1
    )


async def test_records_reach_all_replicas_before_they_are_acknowledged(
    cluster: TestCluster,
) -> None:
    log = await cluster.elect("a", 1)
    results = await asyncio.gather(*(log.append(b"%d" % n) for n in range(50)))
    assert [result.base_offset for result in results] == list(range(50))
    for name in "bc":
        assert cluster.nodes[name].log().durable_end == 50
    # Followers learn without new records that all is committed.
    await cluster.until(lambda: same(cluster))


async def test_a_full_leader_gives_up_what_another_can_lead(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "TICK_S", 0.01)
    for node in cluster.nodes.values():
        node.replication.start()
    log = await cluster.elect("a", 1)
    await log.append(b"first")
    leader = cluster.nodes["a"]
    leader.full = True
    await cluster.until(lambda: bool(leader.resigned))
    assert leader.resigned == [(PLACE, 1)] and log.role == "follower"


@pytest.mark.parametrize("why", ["unheard", "all are full"])
async def test_a_full_leader_stays_where_no_other_has_room(
    why: str, cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "TICK_S", 0.01)
    if why == "unheard":
        cluster.cable.whole.clear()
    if why == "all are full":
        for name in "bc":
            cluster.nodes[name].log().failure = StorageFull("no room")
    for node in cluster.nodes.values():
        node.replication.start()
    log = await cluster.elect("a", 1)
    log.append(b"first").add_done_callback(lambda done: done.cancelled() or done.exception())
    core = cluster.nodes["a"].replication.leading(PLACE)
    assert core is not None
    if why == "all are full":
        await cluster.until(lambda: not core.core.can_hand_over() and log.durable_end == 1)
        await cluster.until(
            lambda: core.core._followers["b"].full and core.core._followers["c"].full
        )
    cluster.nodes["a"].full = True
    await asyncio.sleep(0.1)
    assert cluster.nodes["a"].resigned == [] and log.role == "leader"


async def test_an_ack_waits_for_the_slowest_disk(cluster: TestCluster) -> None:
    log = await cluster.elect("a", 1)
    await log.append(b"first")
    slow = cluster.nodes["c"].log()
    slow.held = True
    acked = log.append(b"second")
    await cluster.until(lambda: slow.log_end_offset == 2)
    await asyncio.sleep(0.02)
    assert not acked.done()
    slow.held = False
    slow.flush()
    await acked


async def test_acks_are_raised_as_long_as_it_leads(cluster: TestCluster) -> None:
    """Also behind a time without a lease."""
    log = await cluster.elect("a", 1)
    assert log.acks_min is Acks.REPLICATED
    replication = cluster.nodes["a"].replication
    replication.keep_acks(PLACE, Acks.LEADER)
    assert log.acks_min is Acks.LEADER
    replication.end_waiting()
    assert (log.acks_min, log.role) == (Acks.LEADER, "leader")


async def test_followers_copy_while_the_leader_flushes(cluster: TestCluster) -> None:
    log = await cluster.elect("a", 1)
    log.held = True
    acked = log.append(b"first")
    await cluster.until(lambda: all(cluster.nodes[name].log().durable_end == 1 for name in "bc"))
    assert not acked.done() and log.high_watermark == 0
    log.held = False
    log.flush()
    await acked


async def test_a_leader_that_lost_what_it_sent_resigns(cluster: TestCluster) -> None:
    log = await cluster.elect("a", 4)
    log.held = True
    log.append(b"lost here")
    other = cluster.nodes["b"].log()
    await cluster.until(lambda: other.durable_end == 1)
    log.failure = StorageFull("no room")
    log.flush()
    assert cluster.nodes["a"].resigned == [(PLACE, 4)]
    log.failure, log.held = None, False
    await cluster.elect("b", 5)
    await other.append(b"next")
    await cluster.until(lambda: same(cluster))
    assert log.values() == [b"lost here", b"next"]


async def test_a_leader_whose_wish_is_answered_in_a_later_epoch_leads_no_more(
    cluster: TestCluster,
) -> None:
    """What waits fails at once, its outcome open, and not when the catalog's view comes."""
    cluster.answer = lambda place, wish: WishAnswer(WishCode.STALE, 5, 9, frozenset("bc"))
    cluster.nodes["b"].log().held = True
    log = await cluster.elect("a", 4, in_sync=["a", "b"])
    waits = log.append(b"x")
    with pytest.raises(NotLeader):
        await asyncio.wait_for(waits, 10)
    assert log.role == "follower" and cluster.nodes["a"].resigned == [(PLACE, 4)]


async def test_a_follower_that_lags_is_removed_and_comes_back(cluster: TestCluster) -> None:
    log = await cluster.elect("a", 1, in_sync=["a", "b"])
    await cluster.until(lambda: cluster.views[PLACE].in_sync == {"a", "b", "c"})
    await log.append(b"with all")


async def test_wishes_of_one_turn_go_in_one_call(cluster: TestCluster) -> None:
    places = [Place("1" * 32, number) for number in range(40)]
    for place in places:
        await cluster.elect("a", 1, in_sync=["a", "b"], place=place)
    await cluster.until(
        lambda: all(cluster.views[place].in_sync == {"a", "b", "c"} for place in places)
    )
    assert sum(map(len, cluster.calls)) == 40
    assert len(cluster.calls) <= 3


async def test_a_wish_without_an_answer_holds_the_high_watermark(cluster: TestCluster) -> None:
    cluster.answer = lambda place, wish: WishAnswer(WishCode.UNANSWERED)
    log = await cluster.elect("a", 1, in_sync=["a", "b"])
    await cluster.until(lambda: bool(cluster.calls))
    cluster.nodes["c"].log().held = True
    # The catalog may have taken c in all the same: what it has not flushed is not committed.
    acked = log.append(b"x")
    await asyncio.sleep(0.05)
    assert not acked.done()
    cluster.nodes["c"].log().held = False
    cluster.nodes["c"].log().flush()
    await acked


async def test_diverging_logs_are_cut_and_agree_again(cluster: TestCluster) -> None:
    old = await cluster.elect("a", 1)
    await old.append(b"kept")
    await cluster.until(lambda: same(cluster))
    # Only a has these: it was cut off.
    await cluster.nodes["b"].replication.drop(PLACE)
    await cluster.nodes["c"].replication.drop(PLACE)
    lost = [old.append(b"lost %d" % n) for n in range(3)]
    await asyncio.sleep(0)
    new = await cluster.elect("b", 2, in_sync=["b", "c"], among=["b", "c"])
    await new.append(b"new")
    await cluster.elect("b", 2, in_sync=["b", "c"], among=["a"])
    await cluster.until(lambda: same(cluster))
    assert old.values() == [b"kept", b"new"]
    assert old.cuts == [1]
    for each in lost:
        assert isinstance(each.exception(), NotLeader)


@pytest.mark.parametrize("error", [ValueError("compacted"), CorruptLog("a bit has flipped")])
async def test_a_log_that_can_not_be_cut_is_copied_again(
    cluster: TestCluster, error: Exception
) -> None:
    """Once the catalog does not count on it."""
    old = await cluster.elect("a", 1)
    await old.append(b"kept")
    await cluster.until(lambda: same(cluster))
    await cluster.nodes["b"].replication.drop(PLACE)
    await cluster.nodes["c"].replication.drop(PLACE)
    old.append(b"lost")
    await asyncio.sleep(0)
    new = await cluster.elect("b", 2, in_sync=["b", "c"], among=["b", "c"])
    await new.append(b"new")
    old.cut_error = error
    await cluster.elect("b", 2, among=["a"])
    await cluster.until(lambda: len(old.cuts) > 1)
    assert old.values() == [b"kept", b"lost"]
    cluster.views[PLACE] = cluster.views[PLACE]._replace(in_sync=frozenset("bc"))
    await cluster.until(lambda: same(cluster))
    assert old.values() == [b"kept", b"new"]


async def test_a_leader_told_of_a_later_epoch_takes_no_more(cluster: TestCluster) -> None:
    await cluster.elect("a", 1)
    await cluster.elect("a", 2, among=["b"])
    node = cluster.nodes["a"]
    await cluster.until(lambda: node.replication.leading(PLACE) is None)
    assert (node.log().role, node.log().epoch) == ("follower", 1)
    assert node.stale == 1


async def test_a_follower_of_another_epoch_waits_for_the_catalog(cluster: TestCluster) -> None:
    log = await cluster.elect("a", 3, among=["a", "b"])
    await cluster.elect("a", 2, among=["c"])
    await cluster.until(lambda: cluster.nodes["c"].stale == 1)
    await cluster.elect("a", 3, among=["c"])
    await log.append(b"x")


async def test_a_follower_behind_the_start_of_the_log_begins_there(cluster: TestCluster) -> None:
    await cluster.elect("a", 1, in_sync=["a", "b"], among=["a", "b"])
    log = cluster.nodes["a"].log()
    for number in range(5):
        await log.append(b"%d" % number)
    await log.delete_records(Offset(3))
    await cluster.elect("a", 1, in_sync=["a", "b"], among=["c"])
    await cluster.until(lambda: same(cluster))
    assert cluster.nodes["c"].log().values() == [b"3", b"4"]


async def test_a_leaders_deletion_reaches_followers(cluster: TestCluster) -> None:
    log = await cluster.elect("a", 1)
    for number in range(5):
        await log.append(b"%d" % number)
    await cluster.until(lambda: same(cluster))
    await asyncio.sleep(0.02)  # nothing more is due to followers
    await log.delete_records(Offset(2))
    await cluster.until(lambda: same(cluster))


async def test_a_full_follower_leaves_and_comes_back(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following_module, "ROOM_PAUSE_S", 0.02)
    log = await cluster.elect("a", 1)
    await log.append(b"first")
    full = cluster.nodes["c"].log()
    full.failure = StorageFull("no room")
    await log.append(b"second")
    assert cluster.views[PLACE].in_sync == {"a", "b"}
    following = cluster.nodes["c"].replication.following(PLACE)
    assert following is not None and following._core is not None
    for _ in range(3):
        following._failed(following._core, full.failure)
    assert sum("no room" in each for each in caplog.messages) == 1, "not with each attempt"
    full.failure = None
    await cluster.until(lambda: same(cluster) and len(cluster.views[PLACE].in_sync) == 3)


async def test_below_the_minimum_replicated_appends_are_refused(cluster: TestCluster) -> None:
    log = await cluster.elect("a", 1, in_sync=["a"], among=["a"])
    assert "min_in_sync is 2" in log.reason
    await cluster.elect("a", 1, in_sync=["a"], among=["b"])
    await cluster.until(lambda: log.reason == "")
    await log.append(b"x")


async def test_streams_that_break_begin_again(cluster: TestCluster) -> None:
    log = await cluster.elect("a", 1)
    for number in range(20):
        appended = [log.append(b"%d %d" % (number, n)) for n in range(5)]
        await asyncio.sleep(0.001 * (number % 3))
        for stream in cluster.streams[number % 3 :: 3]:
            stream.cancel()
        await asyncio.gather(*appended)
    await cluster.until(lambda: same(cluster))
    assert len(log.values()) == 100


async def test_slow_reads_and_little_credit_lose_nothing(cluster: TestCluster) -> None:
    log = await cluster.elect("a", 1, in_sync=["a", "b"], among=["a", "b"])
    value = bytes(300_000)
    for _ in range(60):  # more than the credit of a stream
        await log.append(value)
    log.slow_reads = asyncio.Event()
    log.slow_reads.set()
    await cluster.elect("a", 1, in_sync=["a", "b"], among=["c"])
    cluster.views[PLACE] = cluster.views[PLACE]._replace(partition_epoch=10)
    await cluster.until(lambda: same(cluster))


async def test_segments_roll_where_the_leaders_do(cluster: TestCluster) -> None:
    log = cluster.nodes["a"].log()
    log._segment_records = 10
    await cluster.elect("a", 1)
    for number in range(25):
        await log.append(b"%d" % number)
    assert cluster.nodes["b"].log().rolls == [10, 20]


async def test_a_dropped_partition_asks_and_is_asked_no_more(cluster: TestCluster) -> None:
    log = await cluster.elect("a", 1)
    await log.append(b"x")
    for node in cluster.nodes.values():
        await node.replication.drop(PLACE)
    assert log._when_durable is None
    before = cluster.nodes["b"].log().log_end_offset
    log.append(b"y")
    await asyncio.sleep(0.02)
    assert cluster.nodes["b"].log().log_end_offset == before
    # The streams had nothing else to carry.
    assert all(stream.done() for stream in cluster.streams)


async def test_a_leader_whose_disk_failed_resigns(cluster: TestCluster) -> None:
    log = await cluster.elect("a", 4)
    await log.append(b"x")
    log.failure = StorageFenced("fsync failed")
    log.append(b"y")
    await cluster.until(lambda: cluster.nodes["a"].resigned == [(PLACE, 4)])


async def test_catch_up_is_throttled_and_in_sync_traffic_is_not() -> None:
    cluster = TestCluster(bytes_per_s=4_000_000)
    log = await cluster.elect("a", 1, in_sync=["a", "b"], among=["a", "b"])
    for _ in range(120):
        await log.append(bytes(50_000))  # 6 MB: more than a second's
    began = asyncio.get_running_loop().time()
    await cluster.elect("a", 1, in_sync=["a", "b"], among=["c"])
    behind = cluster.nodes["c"].log()
    await log.append(b"not held up")
    assert behind.log_end_offset < 120
    await cluster.until(lambda: behind.log_end_offset == 121)
    assert asyncio.get_running_loop().time() - began > 0.2
    await cluster.stop()


async def test_credit_that_one_partition_frees_serves_another(cluster: TestCluster) -> None:
    greedy, other = Place("1" * 32, 0), Place("2" * 32, 0)
    log = await cluster.elect("a", 1, place=greedy)
    await cluster.elect("a", 1, place=other)
    held = cluster.nodes["c"].log(greedy)
    held.held = True
    appends = [log.append(bytes(300_000)) for _ in range(40)]
    senders = cluster.nodes["a"].replication._senders
    await cluster.until(lambda: any(each.short_of_credit for each in senders))
    appends.append(cluster.nodes["a"].log(other).append(b"waits"))
    await asyncio.sleep(0.05)
    assert not appends[-1].done()
    held.held = False
    held.flush()
    await asyncio.gather(*appends)
    # Nor did it take until c was left behind.
    assert cluster.views[other].in_sync == {"a", "b", "c"}


async def test_without_a_stream_a_follower_is_connecting(cluster: TestCluster) -> None:
    await (await cluster.elect("a", 1)).append(b"x")
    following = cluster.nodes["b"].replication.following(PLACE)
    assert following is not None and following.state == "copying"
    for stream in cluster.streams:
        stream.cancel()
    await cluster.until(lambda: following.state == "connecting")
    await cluster.until(lambda: following.state == "copying")
