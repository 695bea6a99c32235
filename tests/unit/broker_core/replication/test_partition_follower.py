"""Goal: a follower takes only what continues its own log, and cuts only what its leader lacks."""

from __future__ import annotations

from collections.abc import Sequence

from lakemq.broker_core.api.types import Offset
from lakemq.broker_core.replication.follower import (
    COUNTED_RETRY_S,
    RETRY_S,
    Append,
    AppendFailure,
    AskLater,
    AwaitCatalog,
    Commit,
    Cut,
    DeleteBefore,
    PartitionFollower,
    RestartAt,
    Roll,
    SendAsk,
    State,
    Stop,
)
from lakemq.broker_core.replication.types import Ask, Code, Diverging, LeaderSend
from tests.support.replication.log_shape import LogShape


class Row:
    """What is known of the catalog."""

    partition_epoch = 0

    def __init__(self, counted: Sequence[bool]) -> None:
        self._looks = iter(counted)

    @property
    def counts(self) -> bool:
        return next(self._looks, False)


def follower(log: LogShape, counted: Sequence[bool] = ()) -> PartitionFollower:
    """`counted`: whether the catalog counts on it, at each look."""
    return PartitionFollower("a", 3, log, Row(counted))


def send(base: int, batches: bytes = b"", watermark: int = 0, start: int = 0) -> LeaderSend:
    return LeaderSend(Offset(base), batches, Offset(watermark), Offset(start))


def diverging(base: int, epoch: int, end: int, start: int = 0) -> LeaderSend:
    told = Diverging(epoch, Offset(end))
    return LeaderSend(Offset(base), log_start=Offset(start), diverging=told)


def test_it_asks_from_its_end() -> None:
    log = LogShape([1, 1, 2], durable=2)
    mine = follower(log)
    assert mine.ask() == Ask(Offset(3), 2, Offset(2))
    assert mine.begin() == [SendAsk(again=False)]
    assert (mine.leader, mine.epoch) == ("a", 3)


def test_records_are_appended_and_the_next_ask_leaves_at_once() -> None:
    log = LogShape([1, 1], high_watermark=1)
    mine = follower(log)
    assert mine.begin() == [SendAsk()]
    assert mine.received(send(2, b"batches", 2)) == [
        Append(b"batches"),
        SendAsk(),
        Commit(Offset(2)),
    ]
    log.append(3, durable=False)
    log.high_watermark = Offset(2)
    assert mine.received(send(2, b"batches")) == [], "they came twice"
    assert mine.received(send(3, b"more", 3)) == [Append(b"more"), SendAsk()]
    log.append(3)
    assert mine.flushed() == [Commit(Offset(3)), SendAsk()]


def test_records_go_into_segments_as_the_leaders() -> None:
    mine = follower(LogShape([1, 1]))
    rolled = send(2, b"batches")._replace(roll_at=2)
    assert mine.received(rolled) == [Roll(Offset(2)), Append(b"batches"), SendAsk()]


def test_a_segment_begins_nowhere_else() -> None:
    for roll_at in (1, 3, 2**62):
        wrong = send(2, b"batches")._replace(roll_at=roll_at)
        assert follower(LogShape([1, 1])).received(wrong) == [Append(b"batches"), SendAsk()]


def test_a_segment_may_begin_behind_the_first_record() -> None:
    rolled = send(1, b"batches")._replace(roll_at=1)
    assert Roll(Offset(1)) in follower(LogShape([1])).received(rolled)


def test_an_empty_segment_that_the_leader_lacks_goes_first() -> None:
    """One that this node began when it led, just before another was elected."""
    mine = follower(LogShape([1, 1], segments=[0, 2]))
    assert mine.received(send(2, b"batches")) == [Cut(Offset(2))]
    assert mine.received(send(2, b"batches")) == [], "it is being cut"
    assert mine.cut_done() == [SendAsk(again=True)], "the leader was told just that before"
    # Where it can't go it is written to: asked once, or it would be asked for ever.
    assert mine.received(send(2, b"batches")) == [Append(b"batches"), SendAsk()]


def test_an_empty_segment_that_the_leader_has_too_is_written_to() -> None:
    rolled = send(2, b"batches")._replace(roll_at=2)
    taken = [Roll(Offset(2)), Append(b"batches"), SendAsk()]
    assert follower(LogShape([1, 1], segments=[0, 2])).received(rolled) == taken
    begun = follower(LogShape([], start=2, segments=[2]))
    assert begun.received(send(2, b"batches")) == [Append(b"batches"), SendAsk()]


def test_the_high_watermark_of_a_leader_that_has_not_compared_is_not_taken() -> None:
    log = LogShape([1, 1, 1])
    mine = follower(log)
    assert mine.received(send(2, watermark=3)) == []
    assert mine.state is State.ASKING
    assert mine.received(send(3, watermark=3)) == [Commit(Offset(3))]
    assert mine.received(send(1, watermark=3)) == [Commit(Offset(3))], "they have agreed"


def test_it_cuts_where_both_logs_part() -> None:
    """KIP-279: the leader's end of an epoch is not enough."""
    log = LogShape([1, 1, 2, 2, 2])
    mine = follower(log)
    assert mine.received(diverging(4, 1, 3)) == [], "the answer to another ask"
    assert mine.received(diverging(5, 1, 3)) == [Cut(Offset(2))]
    assert mine.received(diverging(5, 1, 3)) == []
    assert mine.received(send(5, b"batches")) == [], "it is being cut"
    del log.epochs[2:]
    log.durable_end = Offset(2)
    assert mine.cut_done() == [SendAsk(again=True)]
    assert mine.ask() == Ask(Offset(2), 1, Offset(2))
    assert mine.received(send(2, b"batches")) == [Append(b"batches"), SendAsk()]
    log.append(2, 2, 3)
    assert mine.received(diverging(5, 1, 3)) == [], "late: they have agreed since"


def test_the_shorter_part_of_an_epoch_counts() -> None:
    assert follower(LogShape([1, 1, 1])).received(diverging(3, 1, 2)) == [Cut(Offset(2))]


def test_all_above_the_high_watermark_may_be_cut() -> None:
    assert follower(LogShape([0, 0, 0])).received(diverging(3, 0, 1)) == [Cut(Offset(1))]
    mine = follower(LogShape([1, 1, 2], high_watermark=2))
    assert mine.received(diverging(3, 1, 2)) == [Cut(Offset(2))]


def test_an_answer_that_would_cut_nothing_is_not_asked_for_in_a_loop() -> None:
    assert follower(LogShape([1])).received(diverging(1, 1, 5)) == [AskLater(RETRY_S)]


def test_it_begins_at_the_start_of_the_leaders_log() -> None:
    log = LogShape([1, 1], high_watermark=2)
    restart = LeaderSend(Offset(2), log_start=Offset(9), code=Code.RESTART)
    mine = follower(log)
    assert mine.received(restart) == [RestartAt(Offset(9), loses=False)]
    mine = follower(log)
    mine.received(send(2))
    assert mine.received(restart) == [RestartAt(Offset(9), loses=False)], "its start has passed us"
    mine = follower(log)
    mine.received(send(2))
    for start in (1, 2):
        late = LeaderSend(Offset(2), log_start=Offset(start), code=Code.RESTART)
        assert mine.received(late) == []


def test_nothing_is_taken_while_it_restarts() -> None:
    mine = follower(LogShape([1, 1], high_watermark=2))
    restart = LeaderSend(Offset(2), log_start=Offset(2), code=Code.RESTART)
    assert mine.received(restart) == [RestartAt(Offset(2), loses=False)]
    assert mine.received(send(2, b"batches")) == []
    assert mine.cut_done() == [SendAsk(again=True)]
    assert mine.received(send(2, b"batches")) == [Append(b"batches"), SendAsk()]


def test_committed_records_go_only_with_everything() -> None:
    """After an unclean election, which is said."""
    mine = follower(LogShape([1, 1, 2], high_watermark=3))
    assert mine.received(diverging(3, 1, 2)) == [RestartAt(Offset(0), loses=True)]


def test_the_leader_is_told_of_newer_rows() -> None:
    row = Row(())
    mine = PartitionFollower("a", 3, LogShape([1, 1, 2]), row)
    row.partition_epoch = 7
    assert mine.row_changed() == [SendAsk()]
    assert mine.ask().partition_epoch == 7
    mine.received(diverging(3, 1, 2))
    assert mine.row_changed() == [], "the log is being cut: it asks behind that"


def test_what_counts_is_not_dropped() -> None:
    """The catalog could elect it next, with nothing in it."""
    log = LogShape([1, 1, 2], high_watermark=3)
    mine = follower(log, [True, False])
    assert mine.received(diverging(3, 1, 2)) == [AskLater(COUNTED_RETRY_S)]
    assert mine.retry() == [SendAsk(again=True)]
    assert mine.received(diverging(3, 1, 2)) == [RestartAt(Offset(0), loses=True)]


def test_a_log_that_can_not_be_cut_begins_again() -> None:
    mine = follower(LogShape([1, 1, 1]), [True, False])
    assert mine.received(diverging(3, 1, 2, start=1)) == [Cut(Offset(2))]
    assert mine.cut_refused() == [AskLater(COUNTED_RETRY_S)], "it counts still"
    assert mine.cut_refused() == [], "of another cut"
    assert mine.retry() == [SendAsk(again=True)]
    assert mine.received(diverging(3, 1, 2, start=1)) == [Cut(Offset(2))], "it may work now"
    assert mine.cut_refused() == [RestartAt(Offset(1), loses=False)]
    assert mine.received(send(3, b"batches")) == []


def test_an_empty_segment_that_can_not_go_is_written_to() -> None:
    mine = follower(LogShape([1, 1], segments=[0, 2]))
    assert mine.received(send(2, b"batches")) == [Cut(Offset(2))]
    assert mine.cut_refused() == [SendAsk(again=True)]
    assert mine.received(send(2, b"batches")) == [Append(b"batches"), SendAsk()]


def test_the_start_of_the_log_follows_the_leaders_below_the_high_watermark() -> None:
    log = LogShape([1, 1, 1], durable=2, high_watermark=1)
    mine = follower(log)
    assert mine.received(send(3, watermark=3, start=3)) == [
        Commit(Offset(2)),
        DeleteBefore(Offset(2)),
    ]
    log.high_watermark, log.durable_end = Offset(2), Offset(3)
    assert mine.flushed() == [Commit(Offset(3)), DeleteBefore(Offset(3)), SendAsk()]


def test_epochs_decide_whom_it_waits_for() -> None:
    mine = follower(LogShape([1]))
    stale = LeaderSend(Offset(1), code=Code.STALE_EPOCH, leader_epoch=2)
    assert mine.received(stale) == []
    unknown = LeaderSend(Offset(1), code=Code.UNKNOWN_EPOCH, leader_epoch=2)
    assert mine.received(unknown) == [AskLater(RETRY_S)]
    assert mine.retry() == [SendAsk(again=True)]
    soon = mine.received(unknown._replace(code=Code.NOT_READY))[0]
    assert isinstance(soon, AskLater) and soon.delay_s < RETRY_S
    assert mine.received(stale._replace(leader_epoch=4)) == [AwaitCatalog(4)]
    assert mine.retry() == [] and mine.received(send(1, b"batches")) == []
    refused = stale._replace(leader_epoch=3)  # it is of an older registration
    assert follower(LogShape([1])).received(refused) == [AwaitCatalog(3)]


def test_a_full_disk_stops_copying_until_there_is_room() -> None:
    log = LogShape([1])
    mine = follower(log)
    mine.received(send(1, b"batches"))
    assert mine.append_failed(AppendFailure.FULL) == [SendAsk()]
    assert mine.ask().full
    assert mine.received(send(1, b"batches")) == []
    assert mine.has_room() == [SendAsk()]
    assert not mine.ask().full
    assert mine.received(send(1, b"batches")) == [Append(b"batches"), SendAsk()]


def test_a_full_disk_does_not_make_logs_agree() -> None:
    """An append of an earlier epoch fails: what lies here was not compared."""
    mine = follower(LogShape([1]))
    mine.append_failed(AppendFailure.FULL)
    assert mine.received(send(0, watermark=1)) == []
    mine.has_room()
    assert mine.state is State.ASKING


def test_a_fenced_disk_ends_it() -> None:
    mine = follower(LogShape([1]))
    assert mine.append_failed(AppendFailure.FENCED) == [Stop()]
    assert mine.received(send(1, b"batches")) == [] and mine.flushed() == []


def test_damaged_bytes_are_asked_for_again_later() -> None:
    mine = follower(LogShape([1]))
    assert isinstance(mine.append_failed(AppendFailure.CORRUPT)[0], AskLater)
    assert mine.append_failed(AppendFailure.BUSY) == [AskLater(RETRY_S)]
