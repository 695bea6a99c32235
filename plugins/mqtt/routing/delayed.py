"""`$delayed/<seconds>/<topic name>`: publishes that come later, each once.

A delayed publish is a record of its own topic until it is due; then it is published under its name
like any other, and the record of that carries the delayed one's key. When it is stored, the delayed
record is removed. After a crash in between, the bound topics are read from where removals were
known to be complete (`positions`): what is found there is not published again. A name that no topic
takes has no such record, so there the removal comes first.

Every node of a cluster holds what waits; the one that leads the topic publishes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgpack

from lakemq.broker_core.api.errors import LakeMQError, NotAuthorized, StorageFull
from lakemq.broker_core.api.limits.user_shares import UserShares, owner_of
from lakemq.broker_core.api.scheduling.due_queue import DueQueue
from lakemq.broker_core.api.state.internal_topics import DELAYED
from lakemq.broker_core.api.types import Acks, Principal
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.routing.shares import Holdings
from lakemq.plugins.mqtt.state.appends import PLUGIN, AppendCallback, Appends, Outcome
from lakemq.plugins.mqtt.state.ledger import Ledger
from lakemq.plugins.mqtt.state.records import Meta
from lakemq.plugins.mqtt.state.sessions import Positions
from lakemq.plugins.mqtt.state.snapshots import (
    principal_value,
    read_principal,
    read_will,
    will_value,
)
from lakemq.plugins.mqtt.state.stored_values import VERSION, BadSnapshot, number, text, unpacked
from lakemq.plugins.mqtt.wire.messages import Message
from lakemq.plugins.mqtt.wire.packets import Publish, Will
from lakemq.plugins.mqtt.wire.primitives import STRING_MAX_BYTES
from lakemq.plugins.mqtt.wire.reasons import ProtocolError, Reason
from lakemq.plugins.mqtt.wire.topics import check_topic_name

PREFIX: Final = "$delayed/"
SYSTEM: Final = "$SYS/"
"""The broker's own topic names."""
AGAIN_MS: Final = 5_000
"""How long after a failure a publish that is due is tried again."""
_DIGITS_MAX: Final = 10


def split_delayed(text: str) -> tuple[int, str]:
    """Seconds and topic name of `$delayed/<seconds>/<topic name>`. ProtocolError (0x90)."""
    seconds, _, name = text.removeprefix(PREFIX).partition("/")
    number = seconds.isascii() and seconds.isdigit() and len(seconds) <= _DIGITS_MAX
    if not number or name.startswith(PREFIX):
        raise ProtocolError(
            "a delayed publish goes to $delayed/<seconds>/<topic name>", Reason.TOPIC_NAME_INVALID
        )
    return int(seconds), check_topic_name(name)


def is_for_clients(name: str) -> bool:
    """Whether clients may publish under a name that came out of prefixes and rewriting."""
    own = name.startswith((SYSTEM, PREFIX))
    return bool(name) and not own and len(name.encode()) <= STRING_MAX_BYTES


@dataclass(frozen=True, slots=True)
class DelayLimits:
    """Bounds of delayed publishes: longest delay (s), count, and bytes held in memory."""

    delayed_max_s: int = 4_294_967
    delayed_count_max: int = 100_000
    delayed_max_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True, eq=False)
class Delayed:
    """One publish that waits."""

    key: str
    due_ms: int
    packet: Publish
    """Under the name that it is published to."""
    client_id: str
    principal: Principal
    stored: bool = False
    """Whether its record is known to be on disk."""

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return 200 + len(self.packet.topic) + len(self.packet.payload)


def delayed_bytes(one: Delayed) -> bytes:
    """The value of its record."""
    packet = one.packet
    will = Will(packet.topic, packet.payload, packet.qos, packet.retain, packet.properties)
    value = {
        "v": VERSION,
        "due": one.due_ms,
        "what": will_value(will),
        "from": one.client_id,
        "who": principal_value(one.principal),
    }
    return bytes(msgpack.packb(value))


def read_delayed(key: str, data: bytes) -> Delayed:
    """Inverse of `delayed_bytes`. Raises BadSnapshot."""
    value = unpacked(data)
    try:
        will = read_will(value["what"])
        if will is None:
            raise BadSnapshot("a delayed publish without a publish")
        packet = Publish(will.topic, will.payload, will.qos, will.retain)
        packet.properties = will.properties
        principal = read_principal(value["who"])
        return Delayed(key, number(value["due"]), packet, text(value["from"]), principal)
    except KeyError as error:
        raise BadSnapshot(f"{error} is missing") from None


class Delays(DueQueue[Delayed]):
    """All publishes that wait, those first that are due first."""

    def __init__(self, limits: DelayLimits | None = None, life: str = "") -> None:
        """`life`: tells the keys of this life of the broker from those of others."""
        super().__init__()
        self._life = life
        self.limits = limits or DelayLimits()
        self.shares = UserShares()
        self._held, self._held_bytes = Holdings(), Holdings()
        self.published = 0
        self.refused = 0
        """Publishes not taken because a bound was reached, or may not be made any more."""
        self.keeps = True
        """Whether they have records."""
        self.removed: dict[str, Delayed] = {}
        """By key, those whose records are to be removed."""
        self.removing: dict[str, Delayed] = {}
        """Those whose records are being removed."""
        self.under_way: dict[str, Delayed] = {}
        """Those that are being stored under their names."""
        self.floor: Positions | None = None
        """Where this node was before the first of them: none of their records lies below."""
        self.receipts: dict[str, dict[str, tuple[Message, Meta]]] = {}
        """By client and key, what the records of QoS 2 publishes tell about those."""
        self.leaving: list[Delayed] = []
        """Due publishes that go through memory alone, once their records are removed."""
        self.kept_positions: Positions | None = None
        """Every publish below them is known to be removed here; they name all topics that a delayed
        publish may be in."""
        self.unread: Positions = {}
        """Partitions in which those may be that a node before has published, from there on."""
        self.leads = True
        """Whether this node is the one that publishes what is due, and removes it."""
        self.may_publish: Callable[[], bool] = lambda: True
        """Whether it still is, at this moment."""
        self.ready = True
        """Whether positions of this life are kept; nothing is published before."""
        self._made = 0

    def new(
        self, packet: Publish, delay_s: int, client_id: str, principal: Principal, now_ms: int
    ) -> Delayed:
        """Make room for one more; it waits from `schedule` on. Raises StorageFull."""
        limits = self.limits
        if delay_s > limits.delayed_max_s:
            self.refused += 1
            raise StorageFull(f"{limits.delayed_max_s} s is the longest delay")
        self._made += 1
        key = f"{self._life}{now_ms:x}-{self._made:x}"
        one = Delayed(key, now_ms + 1000 * delay_s, packet, client_id, principal)
        full = len(self) >= limits.delayed_count_max
        full |= self.size_bytes + one.size_bytes > limits.delayed_max_bytes
        if full or self._has_its_share(one):
            self.refused += 1
            raise StorageFull("too many publishes are delayed")
        self.add(one)
        return one

    def _has_its_share(self, one: Delayed) -> bool:
        owner, limits, most = owner_of(one.principal), self.limits, self.shares.most
        return self._held.of(owner) >= most(limits.delayed_count_max, owner) or self._held_bytes.of(
            owner
        ) + one.size_bytes > most(limits.delayed_max_bytes, owner)

    def add(self, item: Delayed) -> None:
        """Hold one, and count it for its owner."""
        super().add(item)
        self._count_owned(item, 1)

    def remove(self, key: str) -> Delayed | None:
        """Forget one that is finished or refused; None: it is not known."""
        one = super().remove(key)
        if one is not None:
            self._count_owned(one, -1)
            receipts = self.receipts.get(one.client_id)
            if receipts is not None and receipts.pop(key, None) is not None and not receipts:
                del self.receipts[one.client_id]
        return one

    def _count_owned(self, one: Delayed, sign: int) -> None:
        owner = owner_of(one.principal)
        self._held.add(owner, sign)
        self._held_bytes.add(owner, sign * one.size_bytes)

    def take_leaving(self) -> list[Delayed]:
        """Due publishes that go through memory alone, since the last call."""
        leaving, self.leaving = self.leaving, []
        return leaving

    @property
    def unkept(self) -> bool:
        """Whether their log is to be told something, by this node."""
        return self.leads and (bool(self.removed) or not self.ready)

    def end(self, key: str) -> None:
        """It was published, or never will be: its record goes, where it is this node that removes
        them."""
        one = self.remove(key) if self.leads else None
        if one is not None and self.keeps:
            self.removed[key] = one

    def gone(self, key: str) -> None:
        """Its record was removed."""
        self.remove(key)
        self.removed.pop(key, None)
        self.removing.pop(key, None)

    def is_known(self, key: str) -> bool:
        """Whether its record need not be read."""
        return self.get(key) is not None or key in self.removed or key in self.removing

    def begin(self, one: Delayed, positions: Positions) -> None:
        """It is being stored under its name. `positions`: where this node is."""
        if not self.under_way:
            self.floor = dict(positions)
        self.under_way[one.key] = one

    def ended(self, one: Delayed) -> None:
        """Whether it was stored is known."""
        self.under_way.pop(one.key, None)
        if not self.under_way:
            self.floor = None

    def begin_removal(self) -> dict[str, Delayed]:
        """What is to be removed now."""
        self.removing, self.removed = self.removed, {}
        return self.removing

    def removal_ended(self, leaving: Sequence[Delayed], *, failed: bool) -> None:
        """What `begin_removal` and `take_leaving` gave was removed, or was not."""
        if failed:
            self.removed = self.removing | self.removed
            self.leaving = [*leaving, *self.leaving]
        self.removing = {}

    def lead(self, published: Iterable[str], unread: Positions) -> None:
        """From now on this node publishes what is due. `published`: what a node before had
        published and not removed; `unread`: partitions of which that is not known yet."""
        self.leads, self.unread = True, dict(unread)
        for key in published:
            self.end(key)

    def yield_lead(self) -> None:
        """Another node does. What this one had published and not removed waits again: that node
        finds it published, and removes it."""
        self.leads = self.ready = False
        back = [*self.removing.values(), *self.removed.values()]
        self.removing, self.removed, self.leaving, self.unread = {}, {}, [], {}
        for one in back:
            self.add(one)
            self.schedule(one)


class Arriving(AppendCallback):
    """Hears whether a delayed publish was stored, and tells its client."""

    def __init__(self, delays: Delays, one: Delayed, client: AppendCallback | None) -> None:
        self._delays = delays
        self._one = one
        self._client = client

    def on_result(
        self, packet_id: int, qos: int, size_bytes: int, outcome: Outcome, now_ms: int
    ) -> None:
        """Schedule the publish if it was stored, give up its room if not, then answer the
        client."""
        if isinstance(outcome, LakeMQError) and not self._one.stored:
            self._delays.remove(self._one.key)
        else:  # not before: it could leave before its record is there to be removed
            self._delays.schedule(self._one)
        if self._client is not None:
            self._client.on_result(packet_id, qos, size_bytes, outcome, now_ms)


class Leaving(AppendCallback):
    """Hears whether a publish that was due was stored under its name."""

    def __init__(self, delays: Delays, one: Delayed) -> None:
        self._delays = delays
        self._one = one

    def on_result(
        self, packet_id: int, qos: int, size_bytes: int, outcome: Outcome, now_ms: int
    ) -> None:
        """Finish the publish, or try it again after `AGAIN_MS`; without the right to publish it is
        given up."""
        delays, one = self._delays, self._one
        delays.ended(one)
        if not delays.leads:  # the node that leads by now finds out by itself
            delays.schedule(one)
        elif isinstance(outcome, NotAuthorized):
            delays.refused += 1
            delays.end(one.key)
        elif isinstance(outcome, LakeMQError):
            delays.schedule(one, now_ms + AGAIN_MS)
        else:
            delays.published += 1
            delays.end(one.key)


class Outgoing(Protocol):
    """Where records to append are put."""

    @property
    def appends(self) -> Appends:
        """Records to append, by topic."""


class DelayHub(Protocol):
    """What a delayed publish needs of the hub."""

    delays: Delays
    ledger: Ledger | None
    """None: nothing is kept beyond the process."""

    @property
    def outbox(self) -> Outgoing:
        """Where records to append are put."""

    def binding(self, topic: str) -> Binding | None:
        """The binding that a topic name falls under."""


def delay(
    hub: DelayHub,
    packet: Publish,
    delay_s: int,
    client_id: str,
    principal: Principal,
    now_ms: int,
    client: AppendCallback | None = None,
    headers: bytes = b"",
) -> bool:
    """Keep a publish until it is due. True: `client` is told when it is on disk. Raises
    StorageFull."""
    # Room is taken before the append, so that publishes that are being stored count, too.
    one = hub.delays.new(packet, delay_s, client_id, principal, now_ms)
    if hub.ledger is None:
        hub.delays.schedule(one)
        return False
    token = (Arriving(hub.delays, one, client), packet.packet_id, packet.qos)
    hub.outbox.appends.to(DELAYED, Acks.LEADER if packet.qos else Acks.MEMORY).add(
        PLUGIN, one.key.encode(), delayed_bytes(one), headers, token
    )
    return True
