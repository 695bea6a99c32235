"""A broker with a replica of one partition: the edge that carries out what the core decides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from lakemq.broker_core.api.records.batch import BatchHeader
from lakemq.broker_core.api.types import Offset
from lakemq.broker_core.replication import follower as f
from lakemq.broker_core.replication.leader import Deposed, PartitionLeader, Serve
from lakemq.broker_core.replication.lease import Lease
from lakemq.broker_core.replication.roles import Decision, Drop, Follow, KeepLeading, Lead
from lakemq.broker_core.replication.roles import PartitionRole as Role
from lakemq.broker_core.replication.slots import FollowerSlots, LeaderSlots, SlotKey
from lakemq.broker_core.replication.types import (
    Code,
    FollowerAsk,
    InSyncWish,
    KnownRow,
    LeaderSend,
    WishAnswer,
    WishCode,
)
from lakemq.meta_service.catalog.control_commands import FENCED
from tests.support.replica_log import Refused, SimulatedLog
from tests.support.replication.catalog import TOPIC_ID, Catalog
from tests.support.replication.invariants import Broken, Invariants
from tests.support.replication.upkeep import Throttle, compact, delete_records
from tests.support.replication.world import CONTROLLER, Machine, World

LEASE_S = 1.0
HEARTBEAT_S = 0.25
LAG_MAX_S = 0.6
WISH_TIMEOUT_S = 0.4
TICK_S = 0.1
LEAVE_MAX_S = 1.0
COPY_RATES = (0, 3_000, 100_000)
"""Bytes per second; 0: as fast as it goes."""
FAR = 20
"""So many offsets behind, a follower catches up for sure."""


class Surroundings(Protocol):
    """What a broker reaches."""

    world: World
    catalog: Catalog
    invariants: Invariants
    brokers: dict[str, Broker]

    def heartbeat(
        self, name: str, broker_epoch: int, stream: object, answer: Callable[[str], None]
    ) -> None: ...
    def crashed(self, broker: Broker) -> None: ...
    def has_registered_disk(self, name: str) -> bool: ...


class Broker(Machine):
    """One machine with a replica."""

    leader_type = PartitionLeader

    def __init__(self, name: str, around: Surroundings) -> None:
        super().__init__(name, around.world)
        self.around = around
        self.lease = Lease(LEASE_S)
        self.broker_epoch = 0
        self.stream = object()
        """Of heartbeats."""
        self.broker_epoch = 0
        self.stream = object()
        """Of heartbeats."""

    # ------------------------------------------------------------ the process

    def start(self) -> None:
        """A new process: it registers and recovers its disk."""
        self.broker_epoch = self.around.catalog.register(
            self.name, self.disk.storage_id, damaged=self.disk.damaged
        )
        if not self.broker_epoch:
            self.world.at(0.3, lambda: None if self.up else self.start())
            return
        if self.disk.damaged and self.rng.random() < 0.5:
            self.disk.restart(0)
        self.disk.damaged = False
        self.process += 1
        self.up, self.paused, self.leaving = True, False, False
        self.log = self._open()
        self.lease = Lease(LEASE_S)
        self.stream = object()
        self.role = Role(self.name)
        self.slots = FollowerSlots()
        self.leader: PartitionLeader | None = None
        self.follower: f.PartitionFollower | None = None
        self.standing: dict[str, tuple[int, int, FollowerAsk]] = {}
        """Follower -> its process, the slot of its last ask, and the ask, if records are due."""
        self.streams: dict[tuple[str, int], LeaderSlots] = {}
        """(follower, its process) -> slots of its stream."""
        self.throttle = Throttle(self.rng.choice(COPY_RATES), self.world.now_s)
        self.wish: tuple[InSyncWish, float] | None = None
        self.active = False
        self._heartbeats = 0
        self._flushing = False
        # What it sees of the catalog may be older than its registration.
        newest = len(self.around.catalog.history) - 1
        self.seen = max(0, newest - self.rng.choice((0, 0, 0, 3)))
        self.learn()
        process = self.process
        self._every(HEARTBEAT_S, self._beat, process)
        self._every(TICK_S, self._tick, process)

    def _open(self) -> SimulatedLog:
        log = SimulatedLog(self.disk)
        log.when_committed = self._committed
        return log

    def leave(self) -> None:
        """Stop in good order: when another node leads, or after a while."""
        self.leaving = True
        self._say_leaving()
        process, since_s = self.process, self.world.now_s

        def look() -> None:
            if self.process != process or not self.up:
                return
            late = self.world.now_s - since_s > LEAVE_MAX_S
            if not self.paused and (self.leader is None or late):
                self._close()
            else:
                self.world.at(0.05, look)

    def crash(self) -> None:
        """The process ends at once, and what the disk had not yet stored is lost."""
        self.around.crashed(self)
        super().crash()

    def _say_leaving(self) -> None:
        name, epoch = self.name, self.broker_epoch
        self.world.send(name, CONTROLLER, lambda: self.around.catalog.leave(name, epoch))

    def _close(self) -> None:
        if not self.log.fenced:
            self.log.flush()
        self.stop()
        self.log.checkpoint()
        self._end()

    # ------------------------------------------------------------ lease and catalog

    def _beat(self) -> None:
        if self.leaving:
            self._say_leaving()
        number = self._heartbeats = self._heartbeats + 1
        self.lease.sent(number, self.world.now_s)
        process, epoch, stream = self.process, self.broker_epoch, self.stream

        def answered(state: str) -> None:
            if state != FENCED:
                self.lease.answered(number)

        def answer(state: str) -> None:
            self.world.send(
                CONTROLLER, self.name, lambda: self.deliver(process, lambda: answered(state))
            )

        self.world.send(
            self.name, CONTROLLER, lambda: self.around.heartbeat(self.name, epoch, stream, answer)
        )

    def stream_broke(self) -> None:
        """The heartbeat stream is reset: another is opened."""
        self.lease.shorten(self.world.now_s)
        self.stream = object()
        process = self.process
        self.world.at(self.rng.uniform(0.05, 0.1), lambda: self.deliver(process, self._beat))

    def learn(self) -> None:
        """Look at what the watch has brought."""
        snapshot = self.around.catalog.history[self.seen]
        mine = snapshot.nodes.get(self.name)
        if mine is not None and mine.broker_epoch == self.broker_epoch:
            self.active = mine.admitted
        row = snapshot.row
        if row is None:
            return
        decision = self.role.assigned(row, active=self.active, last_epoch=self.log.last_epoch())
        if decision is not None:
            self._obey(decision)
        elif self.follower is not None:
            self._carry_out(self.follower.row_changed())

    def watch_next(self) -> None:
        if self.seen < len(self.around.catalog.history) - 1:
            self.seen += 1
            self.learn()

    def _obey(self, decision: Decision) -> None:
        if isinstance(decision, KeepLeading):
            assert self.leader is not None
            self.leader.view_changed(decision.view, self.world.now_s)
            self._led()
            return
        self.stop()
        if isinstance(decision, Lead):
            self.log.lead(decision.view.epoch)
            self.leader = self.leader_type(
                self.name,
                self.broker_epoch,
                decision.view,
                self.log,
                self.world.now_s,
                lag_max_s=LAG_MAX_S,
            )
            epoch = decision.view.epoch
            self.around.invariants.leads(
                self.name,
                self.process,
                epoch,
                self.log,
                current=epoch == self.around.catalog.partition.leader_epoch,
            )
            self._led()
        elif isinstance(decision, Follow):
            self.log.follow(decision.epoch)
            self.follower = f.PartitionFollower(
                decision.leader, decision.epoch, self.log, self.row()
            )
            self.slot = self.slots.open(SlotKey(TOPIC_ID, 0, decision.epoch))
            self._carry_out(self.follower.begin())
        elif isinstance(decision, Drop):
            self.disk.restart(0)
            self.log = self._open()

    def stop(self) -> None:
        """Neither lead nor follow."""
        self.leader = self.follower = None
        self.standing.clear()
        self.wish = None
        self.slots.close(TOPIC_ID, 0)
        self.log.leads = False
        self.log.fail_waiting(0)

    # ------------------------------------------------------------ leading

    def append(self, data: bytes, header: BatchHeader, done: Callable[[int, bool], None]) -> None:
        """Raises Refused."""
        if self.leader is None or not self.lease.held(self.world.now_s) or self.leader.shortage():
            raise Refused(f"{self.name} takes no append")
        if self.rng.random() < 0.05:
            self.log.roll_at(self.log.log_end_offset)
        base, epoch = self.log.log_end_offset, self.leader.view.epoch
        self.log.append(data, header, done)
        if self.log.log_end_offset > base:
            self.around.invariants.was_appended(epoch, base, begins=base in self.disk.rolls)
        self._flush_later()

    def serves(self, epoch: int) -> bool:
        """Whether it answers readers, linearizably, as leader of `epoch`."""
        leader = self.leader
        return (
            self.up
            and not self.paused
            and leader is not None
            and leader.view.epoch == epoch
            and leader.ready
            and self.lease.held(self.world.now_s)
        )

    def asked(self, said: FollowerAsk, slot: int, process: int, again: bool) -> None:
        """`again`: as on a stream that was lost and opened again."""
        slots = self.streams.setdefault((said.node, process), LeaderSlots())
        key = slots.key(slot)
        opens = key is None
        if opens:
            key = SlotKey(TOPIC_ID, 0, said.epoch)
            try:
                slots.open(slot, key)
            except ValueError:
                return  # of a slot before the one that there is: a stream brings no such thing
            for older in range(max(0, slot - 5), slot):
                slots.close(older)
        assert key is not None
        said = said._replace(epoch=key.epoch)
        leader = self.leader
        if leader is None:
            code = LeaderSend(said.ask.offset, code=Code.NOT_LEADER, leader_epoch=self.log.epoch)
            self._send(said.node, process, slot, code)
            return
        if again or opens:
            leader.slot_opened(said.node)
        self._answer(leader, said, slot, process)

    def _answer(self, leader: PartitionLeader, said: FollowerAsk, slot: int, process: int) -> None:
        answer = leader.asked(said, self.world.now_s)
        self.standing.pop(said.node, None)
        reply = leader.reply(said.ask, answer)
        if reply is not None:
            self._send(said.node, process, slot, reply)
        if isinstance(answer, Deposed):
            self.stop()
            self.role.gave_up(answer.leader_epoch)
            return
        if isinstance(answer, Serve):
            self.standing[said.node] = process, slot, said
        self._led()

    def _led(self) -> None:
        """After whatever may have moved the high watermark, or made something to send."""
        leader = self.leader
        assert leader is not None
        self.log.commit_to(leader.moved(self.world.now_s))
        for node, (process, slot, said) in sorted(self.standing.items()):
            offset = said.ask.offset
            if self.is_deleted(offset):
                # Deleted meanwhile: the core says where the follower begins now.
                del self.standing[node]
                again = partial(self._answer_again, leader, said, slot, process)
                self.world.at(0.001, partial(self.deliver, self.process, again))
                continue
            if self.shipped_end() > offset and self._may_send(leader, node):
                batches = self.read(offset)
                self.around.invariants.was_shipped(leader.view.epoch, self.log, offset, batches)
                self._note_copied(leader, node, offset, len(batches))
                self._send(node, process, slot, leader.records(node, Offset(offset), batches))
                del self.standing[node]
            else:
                numbers = leader.numbers(node)
                if numbers is not None:
                    self._send(node, process, slot, numbers)

    def is_deleted(self, offset: int) -> bool:
        return offset < self.log.log_start_offset

    def _answer_again(
        self, leader: PartitionLeader, said: FollowerAsk, slot: int, process: int
    ) -> None:
        if self.leader is leader and said.node not in self.standing:
            self._answer(leader, said, slot, process)

    def _may_send(self, leader: PartitionLeader, node: str) -> bool:
        return leader.caught_up(node) or self.throttle.may_send(self.world.now_s)

    def _note_copied(self, leader: PartitionLeader, node: str, offset: int, size: int) -> None:
        now_s = self.world.now_s
        if not leader.caught_up(node):
            self.throttle.sent(size, now_s)
        if node not in leader.view.in_sync and self.log.durable_end - offset >= FAR:
            self.throttle.check(size, now_s)

    def shipped_end(self) -> int:
        """What followers may copy: as soon as it is appended, behind what earlier leaders wrote."""
        log, leader = self.log, self.leader
        assert leader is not None
        return log.durable_end if log.durable_end < leader.epoch_start else log.log_end_offset

    def read(self, offset: int) -> bytes:
        return self.log.read(offset, self.shipped_end(), self.rng.randint(1, 4))

    def _committed(self, before: int) -> None:
        around, leader = self.around, self.leader
        around.invariants.was_committed(self.name, self.log, before)
        row = around.catalog.partition
        if leader is not None and row.leader_epoch == leader.view.epoch:
            around.invariants.watermark_is_covered(
                self.name,
                self.log.high_watermark,
                [
                    (name, around.brokers[name].disk)
                    for name in row.in_sync
                    if around.has_registered_disk(name)
                ],
            )

    def _send(self, node: str, process: int, slot: int, send: LeaderSend) -> None:
        target, source = self.around.brokers[node], self.name
        if send.batches and self.rng.random() < self.world.flips:
            damaged = bytearray(send.batches)
            damaged[self.rng.randrange(len(damaged))] ^= 1 << self.rng.randrange(8)
            send = send._replace(batches=bytes(damaged))
        self.world.send(
            source,
            node,
            lambda: target.deliver(process, lambda: target.received(source, slot, send)),
        )

    def _tick(self) -> None:
        now_s = self.world.now_s
        if self.follower is not None and self.rng.random() < 0.5:
            # As when a stream was lost and opened again.
            self._carry_out(self.follower.retry())
        leader = self.leader
        if leader is None:
            return
        if self.wish is not None and now_s >= self.wish[1]:
            leader.wish_answered(self.wish[0], WishAnswer(WishCode.UNANSWERED), now_s)
            self.wish = None
        nodes = self.around.catalog.history[self.seen].nodes
        registered = {
            name: node.broker_epoch for name, node in nodes.items() if node.state != FENCED
        }
        wish = leader.wish(registered, now_s)
        if wish is not None:
            self.wish = wish, now_s + WISH_TIMEOUT_S
            self.ask_catalog(wish, leader)
        self._led()

    def ask_catalog(self, wish: InSyncWish, leader: PartitionLeader) -> None:
        def answered(answer: WishAnswer) -> None:
            if self.leader is leader:
                leader.wish_answered(wish, answer, self.world.now_s)
                if self.wish is not None and self.wish[0] is wish:
                    self.wish = None
                self._led()
                if leader.deposed:
                    self.stop()
                    self.role.gave_up(leader.view.epoch)

        done: list[WishAnswer] = []
        others = self.rng.choice((0, 0, 1, 2))

        def arrive() -> None:
            # A repeated command answers what it did: clients of the catalog number theirs.
            if not done:
                catalog = self.around.catalog
                done.append(catalog.change_in_sync(self.name, epoch, wish, others))
            (answer,) = done
            if self.rng.random() < 0.1:
                # The call failed behind the command, or answered less than was asked.
                answer = WishAnswer(WishCode.UNANSWERED)
            self.world.send(
                CONTROLLER, self.name, lambda: self.deliver(process, lambda: answered(answer))
            )

        process, epoch = self.process, self.broker_epoch
        self.world.send(self.name, CONTROLLER, arrive)

    # ------------------------------------------------------------ following

    def received(self, source: str, slot: int, send: LeaderSend) -> None:
        if self.follower is not None and self.slot == slot and self.follower.leader == source:
            self._carry_out(self.follower.received(send))

    def _carry_out(self, effects: f.Effects) -> None:  # noqa: C901  one line for each effect
        asks = again = False
        for effect in effects:
            match effect:
                case f.SendAsk():
                    asks, again = True, again or effect.again
                case f.Append(batches):
                    if not self._append_replica(batches):
                        return  # it asks again by itself
                case f.Roll(offset):
                    self.log.roll_at(offset)
                case f.DeleteBefore(offset):
                    self._delete_later(offset)
                case f.Commit(offset):
                    self.log.commit_to(offset)
                case f.Cut() | f.RestartAt():
                    self._cut_later(effect)
                case f.AwaitCatalog() | f.Stop():
                    self.slots.close(TOPIC_ID, 0)
                case _:
                    pass
        if asks and self.follower is not None:
            self._ask(again)

    def _append_replica(self, batches: bytes) -> bool:
        assert self.follower is not None
        try:
            self.log.append_replica(bytes(batches))
        except Refused:
            self._carry_out(self.follower.append_failed(f.AppendFailure.CORRUPT))
            return False
        self._flush_later()
        return True

    def _ask(self, again: bool) -> None:
        follower = self.follower
        assert follower is not None
        ask = follower.ask()
        if not self.slots.changed(self.slot, ask) and not again:
            return
        said = FollowerAsk(self.name, self.broker_epoch, follower.epoch, ask)
        target, slot, process = self.around.brokers[follower.leader], self.slot, self.process
        self.world.send(
            self.name,
            target.name,
            lambda: target.deliver(None, lambda: target.asked(said, slot, process, again)),
        )

    def _cut_later(self, effect: f.Cut | f.RestartAt) -> None:
        follower, process = self.follower, self.process

        def done() -> None:
            if self.follower is not follower or follower is None:
                return
            if isinstance(effect, f.RestartAt):
                self._check_loss()
                self.log.restart_at(effect.offset)
                self.around.invariants.restarted(effect.offset)
            elif not self._cut(effect.offset):
                self._carry_out(follower.cut_refused())
                return
            self.around.invariants.log_changed(self.name, self.log)
            self._carry_out(follower.cut_done())

        self.world.at(self.rng.uniform(0.001, 0.05), lambda: self.deliver(process, done))

    def _cut(self, offset: Offset) -> bool:
        """False: the log refuses."""
        if offset < self.log.log_end_offset and self.rng.random() < 0.1:
            return False  # for this time, what lies there can't be read
        try:
            self.log.truncate(offset)
        except ValueError:
            return False
        return True

    def row(self) -> KnownRow:
        """What is known here of the catalog's row."""
        return self.role

    def _check_loss(self) -> None:
        """Who counts as one that has everything drops nothing of it."""
        row = self.around.catalog.partition
        counts = self.name in (*row.in_sync, *row.eligible)
        if counts and self.around.has_registered_disk(self.name):
            raise Broken(f"I3, I7: {self.name} drops what is committed, and is {row}")

    def _delete_later(self, offset: int) -> None:
        """In the background: the role may be another by then."""
        log, process = self.log, self.process

        def delete() -> None:
            if self.log is log and offset <= log.high_watermark:
                log.delete_records(offset)

        self.world.at(self.rng.uniform(0.001, 0.03), lambda: self.deliver(process, delete))

    # ------------------------------------------------------------ the disk

    def delete_records(self) -> bool:
        """As leader; whether anything was deleted."""
        leads = self.leader is not None
        return leads and delete_records(self.name, self.log, self.around.invariants, self.rng)

    def compact(self) -> bool:
        """Whether anything went."""
        return compact(self.name, self.log, self.compaction_end(), self.around.invariants)

    def compaction_end(self) -> int:
        """Segments below it may be compacted."""
        return self.log.high_watermark

    def _flush_later(self) -> None:
        if self._flushing:
            return
        self._flushing = True
        process = self.process
        slow = self.rng.random() < 0.05
        delay_s = self.rng.uniform(0.05, 0.4) if slow else self.rng.uniform(0.001, 0.02)
        self.world.at(delay_s, lambda: self.deliver(process, self._flush))

    def hold_flushes(self) -> None:
        """No flush begins any more."""
        self._flushing = True

    def _flush(self) -> None:
        self._flushing = False
        waiting = len(self.disk.batches) - self.disk.synced
        if waiting and not self.log.fenced:
            part = self.rng.randint(1, waiting) if self.rng.random() < 0.3 else None
            self.log.flush(part)
            if part is not None and part < waiting:
                self._flush_later()
        self._told_flushed()

    def _told_flushed(self) -> None:
        self.around.invariants.log_changed(self.name, self.log)
        if self.rng.random() < 0.2:
            self.log.checkpoint()
        if self.leader is not None:
            self._led()
        elif self.follower is not None:
            self._carry_out(self.follower.flushed())

    def fail_flush(self) -> None:
        """The disk is full for a moment."""
        if not self.log.fail_flush():
            return
        if self.leader is not None:
            self.flush_of_leader_failed()
            return
        if self.follower is not None:
            self._carry_out(self.follower.append_failed(f.AppendFailure.FULL))
            follower, process = self.follower, self.process

            def room() -> None:
                if self.follower is follower and follower is not None:
                    self._carry_out(follower.has_room())

            self.world.at(self.rng.uniform(0.1, 1.0), lambda: self.deliver(process, room))
        self._told_flushed()

    def flush_of_leader_failed(self) -> None:
        """Followers may have what was lost: its offsets are not given again in this epoch."""
        self.give_up()

    def fence(self) -> None:
        """An fsync fails: a leader gives up its leadership, a follower stops."""
        self.log.fence()
        if self.leader is not None:
            self.give_up()
        elif self.follower is not None:
            self._carry_out(self.follower.append_failed(f.AppendFailure.FENCED))

    def give_up(self) -> None:
        """Stop leading for good in this epoch."""
        assert self.leader is not None
        epoch = self.leader.view.epoch
        self.stop()
        self.role.gave_up(epoch)
        self._resign(epoch, self.process)

    def _resign(self, epoch: int, process: int) -> None:
        """Until the catalog has heard it."""
        row = self.around.catalog.history[self.seen].row
        if self.process == process and row is not None and row.epoch <= epoch:
            self.world.send(
                self.name, CONTROLLER, lambda: self.around.catalog.resign(self.name, epoch)
            )
            self.world.at(0.3, lambda: self._resign(epoch, process))
