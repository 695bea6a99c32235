"""A partition's leader: progress of its followers, the high watermark, and who is in sync.

Pure: the log is looked at, never changed. The caller hands in what followers say (`asked`), that
the log's durable end has moved (`moved`), and what the catalog says (`view_changed`,
`wish_answered`), and carries out the answers. One object serves one leader epoch; another epoch
takes another object. Rules: KIP-101, 279, 595 (divergence), 497 (pending additions), 903 (broker
epochs), 966 (strict minimum of in-sync replicas).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from lakemq.broker_core.api.types import Offset
from lakemq.broker_core.replication.types import (
    Ask,
    Code,
    Diverging,
    FollowerAsk,
    InSyncWish,
    LeaderSend,
    LogState,
    View,
    WishAnswer,
    WishCode,
)

LAG_MAX_S: Final = 5.0
"""A member that has not reached what was durable so long ago leaves the in-sync set."""
JOIN_LAG_MAX_S: Final = 0.2
"""A follower joins when it has reached what was durable so long ago."""
REFUSED_PAUSE_S: Final = 1.0
"""A follower that the catalog refused is proposed again after that, or once it has registered
again."""
WISH_PAUSE_S: Final = 0.5
"""Between a wish that came to nothing and the next one."""


class Serve(NamedTuple):
    """The ask stands: send records from `offset` once (`records`), as soon as some are durable.
    Another ask of the same follower replaces it."""

    offset: Offset


class Hold(NamedTuple):
    """The follower's disk is full: send no records until it asks again. An earlier ask of it does
    not stand any more."""


class Restart(NamedTuple):
    """Send RESTART: the follower drops all and begins at `log_start`."""

    log_start: Offset


class Refuse(NamedTuple):
    """Send this code and `leader_epoch`."""

    code: Code
    leader_epoch: int


class Deposed(NamedTuple):
    """A follower says that a later epoch exists: stop leading in this turn, and wait for the
    catalog. The follower is sent UNKNOWN_EPOCH, and asks again."""

    leader_epoch: int
    """The one that ended."""


Answer = Serve | Hold | Diverging | Restart | Refuse | Deposed


class Progress:
    """How far a follower is, as it said in this epoch, and what it was told."""

    __slots__ = (
        "asked",
        "broker_epoch",
        "durable",
        "full",
        "goal",
        "goal_s",
        "partition_epoch",
        "reach_s",
        "refused_s",
        "told",
    )

    def __init__(self, broker_epoch: int, goal: Offset, now_s: float) -> None:
        self.broker_epoch = broker_epoch
        """0: it has said nothing yet."""
        self.durable = Offset(-1)
        """Its durable end, as far as its log is ours; -1: unknown."""
        self.full = False
        self.partition_epoch = 0
        """Of the newest row of the catalog that it has obeyed."""
        self.goal = goal
        """The leader's durable end at `goal_s`, which the follower is on its way to."""
        self.goal_s = now_s
        self.reach_s = float("inf")
        """How long it took to reach its last goal: how far behind it is."""
        self.refused_s = float("-inf")
        """When the catalog last refused to let it join."""
        self.asked = Offset(-1)
        """Its last ask that agreed with our log; -1: none did."""
        self.told: tuple[int, int] = (-1, -1)
        """High watermark and log start that it was sent since its last ask began a slot."""


class PartitionLeader:
    """Decisions of the leader of one partition in one leader epoch."""

    def __init__(
        self,
        node_id: str,
        broker_epoch: int,
        view: View,
        log: LogState,
        now_s: float,
        *,
        lag_max_s: float = LAG_MAX_S,
    ) -> None:
        """`log`: after its `lead(view.epoch)`. `broker_epoch`: of this node's registration."""
        self.node_id = node_id
        self.view = view
        self.high_watermark = log.high_watermark
        """What the log is to be committed to (`commit_to`), and what followers are told."""
        epoch, end = log.epoch_end(view.epoch - 1)
        self.epoch_start = end if epoch >= 0 else log.log_start_offset
        """First offset of this epoch."""
        self._broker_epoch = broker_epoch
        self._log = log
        self.lag_max_s = lag_max_s
        self._durable_end = log.durable_end
        self._wish: InSyncWish | None = None
        self._maybe_added: frozenset[str] = frozenset()
        """Additions that were not answered: the catalog may still do them."""
        self._wish_after_s = now_s
        self.deposed = False
        """The catalog has another leader epoch: nothing is committed any more, and this node is to
        stop leading, as after `Deposed`."""
        self._stale_below = 0
        """Partition epoch that the catalog has reached, as an answer said; wishes wait for it."""
        self._followers = {
            node: Progress(0, self._durable_end, now_s)
            for node in sorted(view.replicas | view.in_sync)
            if node != node_id
        }

    # ------------------------------------------------------------ followers

    def asked(self, said: FollowerAsk, now_s: float) -> Answer:
        """Notes how far the follower is; says what to send it: `reply` at once for all but `Serve`
        and `Hold`. `moved` and `wish` are due after those two."""
        follower = self._followers.get(said.node)
        if follower is None:
            return Refuse(Code.NOT_REPLICA, self.view.epoch)
        if said.epoch > self.view.epoch:
            return Deposed(self.view.epoch)
        if said.epoch < self.view.epoch:
            return Refuse(Code.STALE_EPOCH, self.view.epoch)
        if said.broker_epoch < follower.broker_epoch:
            # Of a process that is gone: what it had may be gone too (KIP-903).
            return Refuse(Code.STALE_EPOCH, self.view.epoch)
        if said.broker_epoch > follower.broker_epoch:
            follower = Progress(said.broker_epoch, self._durable_end, now_s)
            self._followers[said.node] = follower
        if self._is_undecided(said.ask.offset):
            return Refuse(Code.NOT_READY, self.view.epoch)
        differs = self._differs(said)
        if differs is not None:
            return differs
        # Only what it has of *this* log counts, and asks of two streams may overtake each other.
        durable = min(said.ask.durable, said.ask.offset)
        follower.asked = said.ask.offset
        follower.full = said.ask.full
        follower.partition_epoch = max(follower.partition_epoch, said.ask.partition_epoch)
        follower.durable = max(follower.durable, durable)
        self._measure(follower, now_s)
        return Hold() if follower.full else Serve(said.ask.offset)

    def _is_undecided(self, offset: Offset) -> bool:
        """Whether the follower's end lies behind what is durable here, and a flush that may fail
        decides what this log has there: records that it got as a follower, just before it was
        elected. What is compared must never be taken back. (Records of this epoch are not: a
        leader whose flush of what it sent fails leads no more.)"""
        log = self._log
        return log.durable_end < min(offset, self.epoch_start, log.log_end_offset)

    def _differs(self, said: FollowerAsk) -> Diverging | Restart | None:
        """How the follower's log is no beginning of ours; None: it is one."""
        log, ask = self._log, said.ask
        if ask.offset < log.log_start_offset:
            return Restart(log.log_start_offset)
        if ask.last_epoch < 0:
            # An empty log agrees with any, if it stands within it.
            return Restart(log.log_start_offset) if ask.offset > log.log_end_offset else None
        epoch, end = log.epoch_end(ask.last_epoch)
        if epoch < 0:
            return Restart(log.log_start_offset)  # not one epoch in common
        if epoch != ask.last_epoch or end < ask.offset:
            return Diverging(epoch, end)
        return None

    def _measure(self, follower: Progress, now_s: float) -> None:
        if follower.durable >= self._durable_end:
            follower.reach_s = 0.0
        elif follower.durable >= follower.goal:
            follower.reach_s = now_s - follower.goal_s
        else:
            return
        follower.goal, follower.goal_s = self._durable_end, now_s

    # ------------------------------------------------------------ what is sent

    def slot_opened(self, node: str) -> None:
        """The follower has begun a slot: it knows nothing of the high watermark and log start."""
        if node in self._followers:
            self._followers[node].told = (-1, -1)

    def reply(self, ask: Ask, answer: Answer) -> LeaderSend | None:
        """What is sent at once in answer to an ask; None for those that wait for records."""
        match answer:
            case Diverging():
                return LeaderSend(
                    ask.offset, log_start=self._log.log_start_offset, diverging=answer
                )
            case Restart(log_start):
                return LeaderSend(ask.offset, log_start=log_start, code=Code.RESTART)
            case Refuse(code, leader_epoch):
                return LeaderSend(ask.offset, code=code, leader_epoch=leader_epoch)
            case Deposed(leader_epoch):
                return LeaderSend(ask.offset, code=Code.UNKNOWN_EPOCH, leader_epoch=leader_epoch)
            case _:
                return None

    def records(self, node: str, base: Offset, batches: bytes) -> LeaderSend:
        """Records for an ask that stands. `batches`: what `read_replica(base, ...)` gave, which is
        of one segment."""
        return self._send(node, base, batches, self._roll_at(base))

    def numbers(self, node: str) -> LeaderSend | None:
        """High watermark and log start without records; None: the follower was told, or has not
        asked. Due after `moved`, at most every 5 ms, and at once after the first ask of a slot."""
        follower = self._followers.get(node)
        if follower is None or follower.asked < 0:
            return None
        if follower.told == (self.high_watermark, self._log.log_start_offset):
            return None
        return self._send(node, follower.asked, b"", 0)

    def _send(self, node: str, base: Offset, batches: bytes, roll_at: int) -> LeaderSend:
        log_start = self._log.log_start_offset
        if node in self._followers:
            self._followers[node].told = (self.high_watermark, log_start)
        return LeaderSend(base, batches, self.high_watermark, log_start, roll_at)

    def _roll_at(self, base: Offset) -> int:
        """Where the follower begins a segment, so that sealed ones are alike on all replicas; also
        at the log's start, as the follower's log may begin earlier."""
        return base if base == self._log.segment_start(base) else 0

    def caught_up(self, node: str) -> bool:
        """Whether a follower is in sync or near: what it is sent does not count as catch-up."""
        follower = self._followers.get(node)
        return follower is not None and (
            node in self.view.in_sync or follower.reach_s <= JOIN_LAG_MAX_S
        )

    def lag(self, node: str) -> int | None:
        """Offsets between a follower and the durable end; None: it has said nothing."""
        follower = self._followers.get(node)
        if follower is None or follower.durable < 0:
            return None
        return max(0, self._durable_end - follower.durable)

    def behind_s(self, node: str, now_s: float) -> float:
        """How long a follower has been on its way to what was durable then; 0.0: it has it all."""
        follower = self._followers.get(node)
        if follower is None or follower.durable >= self._durable_end:
            return 0.0
        return max(0.0, now_s - follower.goal_s)

    # ------------------------------------------------------------ high watermark

    def moved(self, now_s: float) -> Offset:
        """The high watermark now; call it when the log's durable end, or a follower, has moved."""
        durable_end = self._log.durable_end
        if durable_end != self._durable_end:
            for follower in self._followers.values():
                # It had all until now: its way to the new end begins now, however long it was idle.
                if follower.durable >= self._durable_end:
                    follower.goal, follower.goal_s = durable_end, now_s
            self._durable_end = durable_end
        if self._has_minimum() and not self.deposed:
            self.high_watermark = max(self.high_watermark, self._copied_end())
        return self.high_watermark

    def _has_minimum(self) -> bool:
        """Strict (KIP-966): below the minimum nothing is committed, so that those that left last
        keep all that is, and may be elected."""
        return len(self.view.in_sync) >= self.view.min_in_sync

    def _copied_end(self) -> Offset:
        """What all members have, and those that may have joined; -1: one has said nothing yet."""
        end = self._durable_end
        for node in self._maximal_in_sync():
            if node != self.node_id:
                end = min(end, self._followers[node].durable)
        return end

    def _maximal_in_sync(self) -> frozenset[str]:
        """All that may be in sync at the catalog (KIP-497): an addition counts from its sending on,
        a removal when it is done."""
        asked = frozenset(self._wish.members) if self._wish is not None else frozenset()
        return (self.view.in_sync | self._maybe_added | asked) & self._followers.keys() | {
            self.node_id
        }

    @property
    def ready(self) -> bool:
        """Whether all records of earlier epochs are committed: a linearizable read may be served,
        and a resident loaded."""
        return self.high_watermark >= self.epoch_start

    def shortage(self) -> str:
        """Why appends with acks `replicated` are refused; empty: they are taken."""
        if self._has_minimum():
            return ""
        return (
            f"{len(self.view.in_sync)} of {len(self.view.replicas)} replicas are in sync, "
            f"min_in_sync is {self.view.min_in_sync}: try again when another replica has caught up"
        )

    # ------------------------------------------------------------ who is in sync

    def view_changed(self, view: View, now_s: float) -> Offset:
        """The catalog's view, maybe old, in the same leader epoch; the high watermark under it.

        Raises ValueError for another leader epoch.
        """
        if view.epoch != self.view.epoch:
            raise ValueError(f"leader epoch {view.epoch}; this leader's is {self.view.epoch}")
        if view.partition_epoch > self.view.partition_epoch:
            self._take(view, now_s)
        return self.moved(now_s)

    def _take(self, view: View, now_s: float) -> None:
        self.view = view
        # Whatever was asked of an older partition epoch is done or never will be.
        self._wish, self._maybe_added = None, frozenset()
        named = view.replicas | view.in_sync
        for node in sorted(named - self._followers.keys() - {self.node_id}):
            self._followers[node] = Progress(0, self._durable_end, now_s)
        for node in self._followers.keys() - named:
            del self._followers[node]

    def wish(self, registered: Mapping[str, int], now_s: float) -> InSyncWish | None:
        """A change of the in-sync set to be asked of the catalog; None: none is due, or one is
        under way. Its answer, or that none came, goes to `wish_answered`.

        `registered`: broker epochs of the nodes that may join, as the catalog says: active or
        draining, not leaving. Call it after `asked`, and twice a second.
        """
        if self._wish is not None or self.deposed or now_s < self._wish_after_s:
            return None
        if self.view.partition_epoch < self._stale_below:
            return None
        members = {self.node_id: self._broker_epoch}
        for node, follower in self._followers.items():
            if node in self.view.in_sync:
                wanted = not self._lags(follower, now_s)
            else:
                wanted = self._may_join(node, follower, registered, now_s)
            if wanted:
                members[node] = follower.broker_epoch
        if members.keys() == self.view.in_sync:
            return None
        self._wish = InSyncWish(self.view.epoch, self.view.partition_epoch, members)
        return self._wish

    def _lags(self, follower: Progress, now_s: float) -> bool:
        if follower.full:
            return True
        behind = follower.durable < self._durable_end or follower.durable < 0
        return behind and now_s - follower.goal_s > self.lag_max_s

    def can_hand_over(self) -> bool:
        """Whether another in-sync replica could lead: it was heard in this epoch and has room. One
        of which nothing was heard may be the one that has just given the partition up."""
        return any(
            node in self.view.in_sync and follower.asked >= 0 and not follower.full
            for node, follower in self._followers.items()
        )

    def _may_join(
        self, node: str, follower: Progress, registered: Mapping[str, int], now_s: float
    ) -> bool:
        return (
            node in self.view.replicas
            and follower.broker_epoch > 0
            and registered.get(node) == follower.broker_epoch
            and not follower.full
            # Moved away and named again, it may have the row in between yet to obey, and delete
            # what it has. The catalog compares the partition epoch again.
            and follower.partition_epoch >= self.view.partition_epoch
            and follower.durable >= max(self.high_watermark, self.epoch_start)
            and follower.reach_s <= JOIN_LAG_MAX_S
            and (follower.durable >= self._durable_end or now_s - follower.goal_s <= JOIN_LAG_MAX_S)
            and now_s - follower.refused_s >= REFUSED_PAUSE_S
        )

    def wish_answered(self, wish: InSyncWish, answer: WishAnswer, now_s: float) -> Offset:
        """What became of a wish that `wish` gave; the high watermark after it.

        `deposed` may be true then: a change may be done and end the leadership at once, as that of
        a node that is fenced.
        """
        if answer.leader_epoch > self.view.epoch:
            self.deposed = True
        # Not that one: the catalog's view came first, and said what became of it.
        if wish is not self._wish:
            return self.moved(now_s)
        self._wish = None
        added = frozenset(wish.members) - self.view.in_sync
        same_epoch = answer.leader_epoch == self.view.epoch
        if answer.code is WishCode.DONE and same_epoch:
            # Its minimum is ours: that changes with the partition epoch only, which was compared.
            done = self.view._replace(
                partition_epoch=answer.partition_epoch, in_sync=answer.in_sync
            )
            self._take(done, now_s)
            return self.moved(now_s)
        self._wish_after_s = now_s + WISH_PAUSE_S
        if answer.code in (WishCode.UNANSWERED, WishCode.STALE):
            # It may be done yet, or was done by a copy of the request: the view will tell.
            self._maybe_added |= added
            if same_epoch:
                self._stale_below = max(self._stale_below, answer.partition_epoch)
        elif answer.code is WishCode.INELIGIBLE:
            for node in added & self._followers.keys():
                self._followers[node].refused_s = now_s
        return self.moved(now_s)
