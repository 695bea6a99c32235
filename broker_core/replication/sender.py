"""A leader's end of replication streams: one `Sender` for each follower that reads from this node.

Records are read where they lie, the newest from memory in the same turn, older ones by the storage
engine's reader threads. What is sent is bounded by the credit that the follower gave and, far from
the end of the log, by the throttle of the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, OffsetOutOfRange
from lakemq.broker_core.api.limits.rates import Bucket
from lakemq.broker_core.api.types import Offset
from lakemq.broker_core.cluster.replica_frames import Diverging, SlotAsk, SlotOpen, SlotSend
from lakemq.broker_core.cluster.streams import FollowerStream
from lakemq.broker_core.cluster.wire import BadFrame
from lakemq.broker_core.replication.leader import Deposed, Serve
from lakemq.broker_core.replication.leading import LeadingPartition
from lakemq.broker_core.replication.slots import LeaderSlots, SlotKey
from lakemq.broker_core.replication.types import Ask, Code, FollowerAsk, LeaderSend, Place

READ_MAX_BYTES: Final = 1024 * 1024
"""Of one partition in one turn, unless a single batch is larger."""
_log: Final = logging.getLogger(__name__)


class Leaders:
    """What senders ask of the node."""

    def __init__(
        self,
        leading: Callable[[Place], LeadingPartition | None],
        deposed: Callable[[Place, int], None],
        throttle: Bucket,
        now_s: Callable[[], float],
    ) -> None:
        """`deposed(partition, epoch)`: a follower knows of a later leader epoch than that.
        `throttle`: bytes of replicas that are far behind."""
        self.leading = leading
        self.deposed = deposed
        self.throttle = throttle
        self.now_s = now_s

    def pay(self, size: int) -> float:
        """So many bytes of catch-up were sent; seconds until more may be."""
        return self.throttle.pay(size, int(self.now_s() * 1000)) / 1000


class Sender:
    """Serves one stream until the follower ends it."""

    def __init__(self, stream: FollowerStream, leaders: Leaders) -> None:
        self.stream = stream
        self.leaders = leaders
        self.bytes_out = 0
        """Of batches sent so far."""
        self.short_of_credit: dict[_Slot, None] = {}
        self.reading_bytes = 0
        """What reads under way may bring, of the credit that is there."""
        self._numbers = LeaderSlots()
        self._slots: dict[int, _Slot] = {}

    async def run(self) -> None:
        """Raises BadFrame, which ends the stream."""
        self.stream.on_credit = self.serve_waiting
        try:
            while (message := await self.stream.ask()) is not None:
                for opened in message.opens:
                    self._open(opened)
                for number in message.closes:
                    self._close(number)
                for ask in message.asks:
                    # One for a slot that was closed meanwhile needs no answer.
                    if (slot := self._slots.get(ask.slot)) is not None:
                        slot.asked(ask)
        finally:
            self.stream.on_credit = lambda: None
            for slot in self._slots.values():
                slot.end()

    def _open(self, opened: SlotOpen) -> None:
        key = SlotKey(opened.topic_id, opened.partition, opened.leader_epoch)
        try:
            before = self._numbers.open(opened.slot, key)
        except ValueError as error:
            raise BadFrame(str(error)) from None
        if before is not None:
            self._slots.pop(before).end()
        self._slots[opened.slot] = _Slot(self, opened.slot, key)

    def _close(self, number: int) -> None:
        self._numbers.close(number)
        slot = self._slots.pop(number, None)
        if slot is not None:
            slot.end()

    @property
    def room_bytes(self) -> int:
        """Bytes of batches that may be read for the stream now; 0 or less: none."""
        return self.stream.room_bytes - self.reading_bytes

    def serve_waiting(self) -> None:
        """Serve slots that wait for credit, the longest first, as long as there is some."""
        while self.short_of_credit and self.room_bytes > 0:
            slot = next(iter(self.short_of_credit))
            del self.short_of_credit[slot]
            slot.serve()


class _Slot:
    """One partition for one follower. Implements `FollowerSlot`."""

    def __init__(self, sender: Sender, number: int, key: SlotKey) -> None:
        self.node = sender.stream.peer.node_id
        self._sender = sender
        self._number = number
        self._key = key
        self._place = Place(key.topic_id, key.partition)
        self._leading: LeadingPartition | None = None
        self._ask: Ask | None = None
        """The last one."""
        self._wanted: Offset | None = None
        """Where the ask stands that records are due for."""
        self._reading: asyncio.Future[bytes] | None = None
        self._later: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """The slot is closed."""
        self._wanted = None
        self._sender.short_of_credit.pop(self, None)
        if self._later is not None:
            self._later.cancel()
        if self._leading is not None:
            self._leading.detach(self)
            self._leading = None

    # -- asks

    def asked(self, said: SlotAsk) -> None:
        """The follower says what it has and wants."""
        self._ask = Ask(
            Offset(said.offset), said.last_epoch, Offset(said.durable), said.full,
            said.partition_epoch,
        )  # fmt: skip
        leading, begins = self._led()
        if leading is None:
            self._wanted = None
            self.tell(LeaderSend(self._ask.offset, code=Code.NOT_LEADER))
            return
        peer = self._sender.stream.peer
        answer = leading.asked(
            FollowerAsk(peer.node_id, peer.broker_epoch, self._key.epoch, self._ask)
        )
        reply = leading.core.reply(self._ask, answer)
        if reply is not None:
            self._wanted = None
            self.tell(reply)
            if isinstance(answer, Deposed):
                self._sender.leaders.deposed(self._place, answer.leader_epoch)
            return
        self._wanted = answer.offset if isinstance(answer, Serve) else None
        self.serve()
        if begins:
            # At once: a follower that has everything may have less committed.
            numbers = leading.core.numbers(self.node)
            if numbers is not None:
                self.tell(numbers)

    def _led(self) -> tuple[LeadingPartition | None, bool]:
        """The leadership that an ask goes to, and whether it is the first ask there."""
        leading = self._sender.leaders.leading(self._place)
        if leading is self._leading:
            return leading, False
        if self._leading is not None:
            self._leading.detach(self)
        self._leading = leading
        if leading is not None:
            leading.attach(self)
        return leading, True

    # -- records

    def serve(self) -> None:
        """See `FollowerSlot`."""
        leading, wanted = self._leading, self._wanted
        if leading is None or leading.stopped or wanted is None or self._reading is not None:
            return
        sender = self._sender
        if wanted >= leading.log.sendable_end:
            return
        if sender.room_bytes <= 0:
            sender.short_of_credit[self] = None
            return
        if self._is_throttled(leading):
            return
        size = min(READ_MAX_BYTES, sender.room_bytes)
        read = leading.log.read_replica(wanted, size)
        if read.done():
            self._have(leading, wanted, read)
        else:
            # Credit is taken for what is read, not for what was: many partitions may be read at a
            # time, each of which would find the same credit.
            self._reading = read
            sender.reading_bytes += size
            read.add_done_callback(lambda done: self._read(leading, wanted, size, done))

    def _is_throttled(self, leading: LeadingPartition) -> bool:
        if leading.core.caught_up(self.node):
            return False
        wait_s = self._sender.leaders.pay(0)
        if wait_s > 0 and self._later is None:
            self._later = asyncio.get_running_loop().call_later(wait_s, self._go_on)
        return wait_s > 0

    def _go_on(self) -> None:
        self._later = None
        self.serve()

    def _read(
        self, leading: LeadingPartition, wanted: Offset, size: int, done: asyncio.Future[bytes]
    ) -> None:
        self._reading = None
        self._sender.reading_bytes -= size
        if not done.cancelled():
            self._have(leading, wanted, done)
        self._sender.serve_waiting()

    def _have(self, leading: LeadingPartition, wanted: Offset, done: asyncio.Future[bytes]) -> None:
        if self._wanted != wanted or leading.stopped or self._leading is not leading:
            done.exception()  # of no interest any more, and so retrieved
            self.serve()  # for the ask that came meanwhile
            return
        try:
            batches = done.result()
        except OffsetOutOfRange:
            # Deleted meanwhile: the core says where the follower begins now.
            asyncio.get_running_loop().call_soon(self._ask_again)
            return
        except LakeMQError as error:
            _log.warning("%s: cannot be read for %s: %s", leading.name, self.node, error)
            self._wanted = None
            self.tell(LeaderSend(wanted, code=Code.CORRUPT))
            return
        if not batches:
            return
        if not leading.core.caught_up(self.node):
            self._sender.leaders.pay(len(batches))
        self._wanted = None
        self.tell(leading.core.records(self.node, wanted, batches))

    def _ask_again(self) -> None:
        if self._wanted is not None and self._ask is not None:
            self.asked(SlotAsk(self._number, *self._ask))

    def tell(self, send: LeaderSend) -> None:
        """See `FollowerSlot`."""
        self._sender.bytes_out += len(send.batches)
        self._sender.stream.send(_frame(self._number, send))


def _frame(slot: int, send: LeaderSend) -> SlotSend:
    diverging = send.diverging and Diverging(send.diverging.epoch, send.diverging.end_offset)
    return SlotSend(
        slot, send.base, send.batches, send.high_watermark, send.log_start,
        send.roll_at, diverging, str(send.code or ""), send.leader_epoch,
    )  # fmt: skip
