"""Goal: a leader counts only what its followers have of its own log, and asks for in-sync sets that
keep what was acknowledged."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.types import Offset
from lakemq.broker_core.replication.leader import (
    Deposed,
    Hold,
    PartitionLeader,
    Refuse,
    Restart,
    Serve,
)
from lakemq.broker_core.replication.types import (
    Ask,
    Code,
    Diverging,
    FollowerAsk,
    InSyncWish,
    View,
    WishAnswer,
    WishCode,
)
from tests.support.replication.log_shape import LogShape

ABC = frozenset("abc")
REGISTERED = {"a": 1, "b": 1, "c": 1}


def leader(
    log: LogShape, *, in_sync: str = "abc", minimum: int = 2, epoch: int = 3, now_s: float = 0.0
) -> PartitionLeader:
    view = View(epoch, 10, frozenset(in_sync), ABC, minimum)
    return PartitionLeader("a", 1, view, log, now_s)


def said(
    node: str,
    offset: int,
    durable: int | None = None,
    *,
    last_epoch: int = 3,
    broker_epoch: int = 1,
    epoch: int = 3,
    full: bool = False,
    row: int = 1_000,
) -> FollowerAsk:
    """`row`: partition epoch of the newest row of the catalog that it has obeyed."""
    end = Offset(offset if durable is None else durable)
    ask = Ask(Offset(offset), last_epoch, end, full, row)
    return FollowerAsk(node, broker_epoch, epoch, ask)


def done(wish: InSyncWish) -> WishAnswer:
    members = frozenset(wish.members)
    return WishAnswer(WishCode.DONE, wish.epoch, wish.partition_epoch + 1, members)


# ------------------------------------------------------------ where logs part


def test_a_beginning_of_the_log_is_served() -> None:
    lead = leader(LogShape([1, 1, 3, 3]))
    assert lead.asked(said("b", 0, last_epoch=-1), 0.0) == Serve(Offset(0))
    assert lead.asked(said("b", 2, last_epoch=1), 0.0) == Serve(Offset(2))
    assert lead.asked(said("b", 4), 0.0) == Serve(Offset(4))


@pytest.mark.parametrize(
    ("offset", "last_epoch", "told"),
    [
        (3, 1, Diverging(1, Offset(2))),  # one more of the epoch than we have
        (3, 2, Diverging(1, Offset(2))),  # an epoch that we lack
        (5, 3, Diverging(3, Offset(4))),  # beyond our end
        (9, 0, Restart(Offset(0))),  # not one epoch in common
    ],
)
def test_a_log_that_parted_is_told_where(
    offset: int, last_epoch: int, told: Diverging | Restart
) -> None:
    lead = leader(LogShape([1, 1, 3, 3]))
    assert lead.asked(said("b", offset, last_epoch=last_epoch), 0.0) == told
    assert lead.lag("b") is None, "nothing of a log that parted counts"


def test_a_follower_below_the_start_of_the_log_begins_there() -> None:
    lead = leader(LogShape([1, 3], start=100))
    assert lead.asked(said("b", 99, last_epoch=1), 0.0) == Restart(Offset(100))
    assert lead.asked(said("b", 0, last_epoch=-1), 0.0) == Restart(Offset(100))
    assert lead.asked(said("b", 100, last_epoch=-1), 0.0) == Serve(Offset(100))
    assert lead.asked(said("b", 103, last_epoch=-1), 0.0) == Restart(Offset(100))


def test_what_a_flush_may_take_back_is_not_compared() -> None:
    """Records that it got as a follower, and has not fsynced when it is elected."""
    log = LogShape([1, 1, 1], durable=2)
    lead = leader(log)
    ask = said("b", 3, last_epoch=1)
    answer = lead.asked(ask, 0.0)
    assert answer == Refuse(Code.NOT_READY, 3) and lead.lag("b") is None
    assert lead.asked(said("c", 2, last_epoch=1), 0.0) == Serve(Offset(2))
    del log.epochs[2:]  # the flush fails
    assert lead.asked(ask, 0.0) == Diverging(1, Offset(2))
    log.append(1)
    assert lead.asked(ask, 0.0) == Serve(Offset(3))


def test_epochs_of_both_sides_are_compared() -> None:
    lead = leader(LogShape([3]))
    ask = said("b", 1, epoch=2)
    assert lead.asked(ask, 0.0) == Refuse(Code.STALE_EPOCH, 3)
    later = said("b", 1, epoch=4)
    answer = lead.asked(later, 0.0)
    assert answer == Deposed(3)
    reply = lead.reply(later.ask, answer)
    assert reply is not None and (reply.code, reply.leader_epoch) == (Code.UNKNOWN_EPOCH, 3)
    assert lead.asked(said("x", 1), 0.0) == Refuse(Code.NOT_REPLICA, 3)


# ------------------------------------------------------------ high watermark


def test_the_high_watermark_is_the_least_durable_end_of_the_in_sync_set() -> None:
    log = LogShape([3, 3, 3, 3], durable=3)
    lead = leader(log)
    lead.asked(said("b", 3, 2), 0.0)
    assert lead.moved(0.0) == 0, "c has said nothing"
    lead.asked(said("c", 3, 3), 0.0)
    assert lead.moved(0.0) == 2
    lead.asked(said("b", 3, 1), 0.0)  # overtaken on its way
    assert lead.moved(0.0) == 2
    lead.asked(said("b", 3, 3), 0.0)
    assert lead.moved(0.0) == 3


def test_the_leaders_own_disk_counts() -> None:
    log = LogShape([3, 3])
    lead = leader(log)
    for node in "bc":
        lead.asked(said(node, 2), 0.0)
    log.durable_end = Offset(1)
    assert lead.moved(0.0) == 1


def test_what_a_follower_claims_beyond_its_own_end_does_not_count() -> None:
    lead = leader(LogShape([3, 3]), in_sync="ab")
    lead.asked(said("b", 1, 2), 0.0)
    assert lead.moved(0.0) == 1


def test_the_high_watermark_stands_below_the_minimum() -> None:
    lead = leader(LogShape([3]), in_sync="a")
    assert lead.moved(0.0) == 0
    assert "min_in_sync is 2" in lead.shortage()
    lower = View(3, 11, frozenset("a"), ABC, 1)
    assert lead.view_changed(lower, 0.0) == 1
    assert lead.shortage() == ""


def test_a_pending_addition_counts_from_its_asking_on() -> None:
    """KIP-497: the catalog may have done it, and elect the new member."""
    log = LogShape([3])
    lead = leader(log, in_sync="ab")
    lead.asked(said("b", 1), 0.0)
    lead.asked(said("c", 1), 0.0)
    wish = lead.wish(REGISTERED, 0.0)
    assert wish == InSyncWish(3, 10, {"a": 1, "b": 1, "c": 1})
    log.append(3)
    lead.asked(said("b", 2), 0.1)
    assert lead.moved(0.1) == 1
    assert lead.wish(REGISTERED, 0.1) is None, "one at a time"
    lead.wish_answered(wish, WishAnswer(WishCode.UNANSWERED), 0.2)
    assert lead.moved(0.2) == 1, "it may still be done"
    assert lead.view_changed(View(3, 11, frozenset("ab"), ABC, 2), 0.3) == 2


def test_an_addition_that_was_stale_counts_until_the_view_comes() -> None:
    """A copy of the request may have done it."""
    log = LogShape([3])
    lead = leader(log, in_sync="ab")
    lead.asked(said("b", 1), 0.0)
    lead.asked(said("c", 1), 0.0)
    wish = lead.wish(REGISTERED, 0.0)
    assert wish is not None
    log.append(3)
    lead.asked(said("b", 2), 0.1)
    assert lead.wish_answered(wish, WishAnswer(WishCode.STALE, 3, 11, ABC), 0.1) == 1
    assert lead.view_changed(View(3, 11, frozenset("ab"), ABC, 2), 0.2) == 2


def test_a_refused_addition_counts_no_more() -> None:
    log = LogShape([3])
    lead = leader(log, in_sync="ab")
    lead.asked(said("b", 1), 0.0)
    lead.asked(said("c", 1), 0.0)
    wish = lead.wish(REGISTERED, 0.0)
    assert wish is not None
    log.append(3)
    lead.asked(said("b", 2), 0.1)
    assert lead.moved(0.1) == 1
    assert lead.wish_answered(wish, WishAnswer(WishCode.INELIGIBLE), 0.1) == 2
    lead.asked(said("c", 2), 0.2)
    assert lead.wish(REGISTERED, 0.7) is None, "not at once again"
    assert lead.wish(REGISTERED, 1.2) is not None


def test_only_who_was_refused_has_to_wait() -> None:
    lead = leader(LogShape([3]), in_sync="a", minimum=1)
    lead.moved(0.0)
    lead.asked(said("b", 1), 0.0)
    wish = lead.wish(REGISTERED, 0.0)
    assert wish is not None and set(wish.members) == {"a", "b"}
    lead.wish_answered(wish, WishAnswer(WishCode.INELIGIBLE), 0.0)
    lead.asked(said("c", 1), 0.1)
    assert lead.wish(REGISTERED, 0.4) is None, "not at once"
    later = lead.wish(REGISTERED, 0.5)
    assert later is not None and set(later.members) == {"a", "c"}


def test_replicas_come_and_go_with_the_view() -> None:
    lead = leader(LogShape([3]))
    lead.asked(said("c", 1), 0.0)
    moved = View(3, 11, frozenset("ab"), frozenset("abd"), 2)
    lead.view_changed(moved, 0.0)
    assert lead.asked(said("d", 1), 0.0) == Serve(Offset(1))
    assert lead.asked(said("c", 1), 0.0) == Refuse(Code.NOT_REPLICA, 3)
    assert lead.numbers("c") is None and not lead.caught_up("c")


def test_a_removal_counts_when_it_is_done() -> None:
    log = LogShape([3, 3])
    lead = leader(log)
    lead.asked(said("b", 2), 0.0)
    lead.asked(said("c", 1, full=True), 0.0)
    wish = lead.wish(REGISTERED, 0.0)
    assert wish is not None and set(wish.members) == {"a", "b"}
    assert lead.moved(0.0) == 1
    assert lead.wish_answered(wish, done(wish), 0.0) == 2


def test_an_answer_that_the_watch_overtook_changes_nothing() -> None:
    lead = leader(LogShape([3]))
    lead.asked(said("b", 1), 0.0)
    lead.asked(said("c", 1, full=True), 0.0)
    wish = lead.wish(REGISTERED, 0.0)
    assert wish is not None
    lead.view_changed(View(3, 12, ABC, ABC, 3), 0.0)
    lead.wish_answered(wish, done(wish), 0.0)
    assert lead.view == View(3, 12, ABC, ABC, 3)
    lead.view_changed(View(3, 11, frozenset("ab"), ABC, 2), 0.0)
    assert lead.view.partition_epoch == 12, "an old view"
    with pytest.raises(ValueError, match="leader epoch 4"):
        lead.view_changed(View(4, 13, ABC, ABC, 2), 0.0)


@pytest.mark.parametrize("code", [WishCode.DONE, WishCode.STALE])
def test_an_answer_of_a_later_epoch_ends_the_leadership(code: WishCode) -> None:
    """The catalog let the member join and elected it at once, as this leader is fenced."""
    log = LogShape([3])
    lead = leader(log, in_sync="a", minimum=1)
    lead.moved(0.0)
    lead.asked(said("b", 1), 0.0)
    wish = lead.wish(REGISTERED, 0.0)
    assert wish is not None and not lead.deposed
    log.append(3)
    assert lead.wish_answered(wish, WishAnswer(code, 4, 12, frozenset("b")), 0.0) == 1
    assert lead.deposed
    lead.asked(said("b", 2), 0.1)
    assert lead.moved(0.1) == 1, "nothing is committed any more"
    assert lead.wish(REGISTERED, 9.0) is None


def test_after_a_stale_wish_the_view_is_waited_for() -> None:
    lead = leader(LogShape([3]))
    lead.asked(said("c", 1, full=True), 0.0)
    wish = lead.wish(REGISTERED, 0.0)
    assert wish is not None
    lead.wish_answered(wish, WishAnswer(WishCode.STALE, 3, 12, ABC), 0.0)
    assert lead.wish(REGISTERED, 4.0) is None
    lead.view_changed(View(3, 11, ABC, ABC, 2), 4.0)
    assert lead.wish(REGISTERED, 4.0) is None
    lead.view_changed(View(3, 12, ABC, ABC, 2), 4.0)
    assert lead.wish(REGISTERED, 4.0) is not None


def test_an_epoch_begins_behind_the_ones_before() -> None:
    assert leader(LogShape([0, 0])).epoch_start == 2
    assert leader(LogShape([3, 3], start=7)).epoch_start == 7
    assert leader(LogShape(start=7)).epoch_start == 7


def test_it_is_ready_when_earlier_epochs_are_committed() -> None:
    lead = leader(LogShape([1, 1, 2, 3], durable=4, high_watermark=1))
    assert lead.epoch_start == 3
    for node in "bc":
        lead.asked(said(node, 2, last_epoch=1), 0.0)
    lead.moved(0.0)
    assert not lead.ready
    for node in "bc":
        lead.asked(said(node, 3, last_epoch=2), 0.0)
    lead.moved(0.0)
    assert lead.ready


# ------------------------------------------------------------ who is in sync


def test_a_member_that_lags_too_long_is_proposed_to_leave() -> None:
    log = LogShape([3])
    lead = leader(log)
    for node in "bc":
        lead.asked(said(node, 1), 100.0)
    assert lead.wish(REGISTERED, 200.0) is None, "an idle partition makes nobody lag"
    log.append(3)
    lead.moved(200.0)
    lead.asked(said("b", 2), 200.1)
    assert lead.wish(REGISTERED, 205.0) is None
    wish = lead.wish(REGISTERED, 205.1)
    assert wish is not None and set(wish.members) == {"a", "b"}


def test_a_member_under_steady_load_does_not_lag() -> None:
    """It is always a little behind, and never caught at the end."""
    log = LogShape([3])
    lead = leader(log)
    for step in range(1, 200):
        log.append(3)
        lead.moved(step * 0.1)
        for node in "bc":
            lead.asked(said(node, step), step * 0.1)
        assert lead.wish(REGISTERED, step * 0.1) is None


def test_a_member_that_never_asks_leaves() -> None:
    lead = leader(LogShape())
    lead.asked(said("b", 0, last_epoch=-1), 0.0)
    assert lead.wish(REGISTERED, 5.0) is None
    wish = lead.wish(REGISTERED, 5.1)
    assert wish is not None and set(wish.members) == {"a", "b"}


def test_a_follower_joins_when_it_has_all_that_is_committed() -> None:
    log = LogShape([2, 2, 3], high_watermark=2)
    lead = leader(log, in_sync="ab")
    lead.asked(said("b", 3), 0.0)
    lead.moved(0.0)
    lead.asked(said("c", 2, last_epoch=2), 0.0)
    assert lead.wish(REGISTERED, 0.0) is None, "below the high watermark"
    lead.asked(said("c", 3, 2), 0.1)
    assert lead.wish(REGISTERED, 0.1) is None, "not fsynced"
    lead.asked(said("c", 3), 0.1)
    assert lead.wish({**REGISTERED, "c": 2}, 0.1) is None, "it has registered again (KIP-903)"
    assert lead.wish({"a": 1, "b": 1}, 0.1) is None, "it is fenced"
    assert lead.wish(REGISTERED, 0.1) is not None


def test_a_follower_that_may_have_an_older_row_to_obey_does_not_join() -> None:
    """Moved away and named again, it deletes what it has when it hears of the first."""
    lead = leader(LogShape([3]), in_sync="ab")
    lead.asked(said("b", 1), 0.0)
    lead.asked(said("c", 1, row=lead.view.partition_epoch - 1), 0.0)
    assert lead.wish(REGISTERED, 0.0) is None
    lead.asked(said("c", 1, row=lead.view.partition_epoch), 0.1)
    lead.asked(said("c", 1, row=0), 0.1)  # overtaken on its way
    wish = lead.wish(REGISTERED, 0.1)
    assert wish is not None and wish.members.keys() == {"a", "b", "c"}


def test_a_follower_far_behind_does_not_join() -> None:
    log = LogShape([3] * 10)
    lead = leader(log, in_sync="ab", minimum=3)
    for step in range(1, 40):
        now_s = 3.0 * step
        log.append(*[3] * 10)
        lead.moved(now_s)
        lead.asked(said("b", len(log.epochs)), now_s)
        lead.asked(said("c", 10 * step), now_s)
        assert lead.wish(REGISTERED, now_s) is None
        assert not lead.caught_up("c")
    lead.asked(said("c", len(log.epochs)), now_s)
    assert lead.wish(REGISTERED, now_s) is not None


def test_an_older_registration_of_a_follower_is_refused() -> None:
    lead = leader(LogShape([3, 3]), in_sync="ab")
    lead.asked(said("b", 2, broker_epoch=5), 0.0)
    assert lead.asked(said("b", 2, broker_epoch=4), 0.0) == Refuse(Code.STALE_EPOCH, 3)
    lead.asked(said("b", 0, last_epoch=-1, broker_epoch=6), 0.0)
    assert lead.lag("b") == 2, "what the earlier process had may be gone"


# ------------------------------------------------------------ what is sent


def test_numbers_are_told_once() -> None:
    log = LogShape([3])
    lead = leader(log)
    assert lead.numbers("b") is None
    lead.asked(said("b", 1), 0.0)
    first = lead.numbers("b")
    assert first is not None and (first.base, first.high_watermark) == (1, 0)
    assert lead.numbers("b") is None
    lead.asked(said("c", 1), 0.0)
    lead.moved(0.0)
    second = lead.numbers("b")
    assert second is not None and second.high_watermark == 1
    lead.slot_opened("b")
    assert lead.numbers("b") == second


def test_a_full_follower_is_sent_nothing() -> None:
    lead = leader(LogShape([3]))
    assert lead.asked(said("b", 0, last_epoch=-1, full=True), 0.0) == Hold()


def test_segments_roll_where_the_leader_rolled() -> None:
    log = LogShape([3] * 6, segments=[0, 2, 4])
    lead = leader(log)

    def roll_at(base: int) -> int:
        return lead.records("b", Offset(base), b"batches").roll_at

    assert [roll_at(base) for base in range(6)] == [0, 0, 2, 0, 4, 0]


def test_a_follower_whose_log_begins_earlier_begins_a_segment_at_the_leaders_start() -> None:
    log = LogShape([3] * 4, segments=[2, 4], start=2)
    lead = leader(log)
    assert lead.records("b", Offset(2), b"batches").roll_at == 2
