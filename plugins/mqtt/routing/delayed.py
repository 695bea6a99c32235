"""`$delayed/<seconds>/<topic name>`: publishes that come later, each once.

A delayed publish is a record of its own topic until it is due; then it is published under its name
like any other, and the record of that carries the delayed one's key. When it is seen in the bound
topic, the delayed record is removed. After a crash in between, the bound topics are read from where
removals were known to be complete (`positions`): what is found there is not published again. A name
that no topic takes has no such record, so there the removal comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import msgpack

from lakemq.broker_core.api.errors import LakeMQError, NotAuthorized, StorageFull
from lakemq.broker_core.api.limits.user_shares import UserShares, owner_of
from lakemq.broker_core.api.scheduling.due_queue import DueQueue
from lakemq.broker_core.api.types import Acks, Principal
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.routing.shares import Holdings
from lakemq.plugins.mqtt.state.appends import PLUGIN, AppendCallback, Appends, Outcome
from lakemq.plugins.mqtt.state.ledger import Ledger
from lakemq.plugins.mqtt.state.sessions import Positions
from lakemq.plugins.mqtt.state.snapshots import (
    principal_value,
    read_principal,
    read_will,
    will_value,
)
from lakemq.plugins.mqtt.state.stored_values import VERSION, BadSnapshot, number, text, unpacked
from lakemq.plugins.mqtt.wire.packets import Publish, Will
from lakemq.plugins.mqtt.wire.primitives import STRING_MAX_BYTES
from lakemq.plugins.mqtt.wire.reasons import ProtocolError, Reason
from lakemq.plugins.mqtt.wire.topics import check_topic_name

PREFIX: Final = "$delayed/"
SYSTEM: Final = "$SYS/"
"""The broker's own topic names."""
TOPIC: Final = "__mqtt_delayed"
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
        self.removed: list[str] = []
        """Keys of records to be removed."""
        self.leaving: list[Delayed] = []
        """Due publishes that go through memory alone, once their records are removed."""
        self.kept_positions: Positions | None = None
        """Every publish below them is known to be removed here; they name all topics that a delayed
        publish may be in."""
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
        return one

    def _count_owned(self, one: Delayed, sign: int) -> None:
        owner = owner_of(one.principal)
        self._held.add(owner, sign)
        self._held_bytes.add(owner, sign * one.size_bytes)

    def take_leaving(self) -> list[Delayed]:
        """Due publishes that go through memory alone, since the last call."""
        leaving, self.leaving = self.leaving, []
        return leaving

    def end(self, key: str) -> None:
        """It was published, or never will be: its record goes."""
        if self.remove(key) is not None:
            self.removed.append(key)


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
        if isinstance(outcome, LakeMQError):
            self._delays.remove(self._one.key)
        else:  # not before: it could leave before its record is there to be removed
            self._delays.schedule(self._one)
        if self._client is not None:
            self._client.on_result(packet_id, qos, size_bytes, outcome, now_ms)


class Leaving(AppendCallback):
    """Hears whether a publish that was due was stored under its name."""

    def __init__(self, delays: Delays, one: Delayed, kept: bool) -> None:
        """`kept`: it has a record, and goes when the record of its publish is seen."""
        self._delays = delays
        self._one = one
        self._kept = kept

    def on_result(
        self, packet_id: int, qos: int, size_bytes: int, outcome: Outcome, now_ms: int
    ) -> None:
        """Finish the publish, or try it again after `AGAIN_MS`; without the right to publish it is
        given up."""
        if isinstance(outcome, NotAuthorized):
            self._delays.refused += 1
            self._delays.end(self._one.key)
        elif isinstance(outcome, LakeMQError):
            self._delays.schedule(self._one, now_ms + AGAIN_MS)
        else:
            self._delays.published += 1
            if not self._kept:
                self._delays.remove(self._one.key)


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
    hub.outbox.appends.to(TOPIC, Acks.LEADER if packet.qos else Acks.MEMORY).add(
        PLUGIN, one.key.encode(), delayed_bytes(one), headers, token
    )
    return True
