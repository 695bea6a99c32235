"""The MQTT hub without sockets or clock: scripted clients, and storage that answers when told.

bench = Bench()
device = bench.connect("device-1", version=5)
device.send(Publish("a/b", b"x", qos=1, packet_id=1))
bench.store()
assert device.received() == [Acknowledgement(PacketType.PUBACK, 1)]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from lakemq.broker_core.api.errors import LakeMQError, NotAuthorized, Undecided, UnknownMechanism
from lakemq.broker_core.api.ports import Exchange, Mechanism
from lakemq.broker_core.api.records.batch import encode as encode_batch
from lakemq.broker_core.api.records.batch import read_header
from lakemq.broker_core.api.types import (
    ANONYMOUS,
    NO_CONTEXT,
    Accepted,
    AccessContext,
    Challenge,
    CommittedBatch,
    Offset,
    Operation,
    Placed,
    Principal,
    Resource,
)
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.routing.delayed import DelayLimits, Delays
from lakemq.plugins.mqtt.routing.delaying import release_due
from lakemq.plugins.mqtt.routing.history import Reading, committed, read_on
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.routing.retained import Retained
from lakemq.plugins.mqtt.session import authenticating
from lakemq.plugins.mqtt.session.progress import Dialogue
from lakemq.plugins.mqtt.session.protocol import ServerProtocol
from lakemq.plugins.mqtt.session.subscribing import send_retained
from lakemq.plugins.mqtt.state.appends import PendingAppend
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.state.records import RecordReader
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.messages import Message, Place
from lakemq.plugins.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    V311,
    Connack,
    Connect,
    Disconnect,
    Filter,
    Packet,
    Properties,
    Publish,
    Suback,
    Subscribe,
    Will,
)
from lakemq.plugins.mqtt.wire.reasons import connect_reason

START_MS = 1_800_000_000_000


class Device:
    """A client on a scripted wire."""

    def __init__(self, bench: Bench, version: int, peer_host: str = "127.0.0.1") -> None:
        self.bench = bench
        self.version = version
        self.connection = ServerProtocol(bench.hub, peer_host, bench.now_ms)
        self._decoder = Decoder(1 << 28, version=version)

    def send(self, *packets: Packet) -> Device:
        return self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> Device:
        self.connection.receive(data, self.bench.now_ms)
        return self

    def raw(self) -> bytes:
        """Bytes that the broker wrote since the last call, storage having answered all."""
        self.bench.load()
        data = self._written()
        while self.connection in self.bench.hub.outbox.retained or self.connection.out:
            self.bench.turn()
            data += self._written()
        return data

    def _written(self) -> bytes:
        data = b"".join(self.connection.out)
        self.connection.out.clear()
        self.connection.written(self.bench.now_ms, full=False)
        if self.connection in self.bench.hub.outbox.writes:
            self.bench.hub.outbox.writes.remove(self.connection)
        return data

    def received(self) -> list[Packet]:
        """Packets that the broker wrote since the last call."""
        packets = self._decoder.feed(self.raw())
        assert self._decoder.error is None, self._decoder.error
        return packets

    def decoded(self) -> list[Packet]:
        """Packets that the broker wrote so far; what it waits for stays under way."""
        return self._decoder.feed(self._written())

    def one(self) -> Any:
        (packet,) = self.received()
        return packet

    def publishes(self) -> list[tuple[str, bytes]]:
        return [(each.topic, each.payload) for each in self.received() if type(each) is Publish]

    @property
    def closed(self) -> bool:
        return self.connection.closing is not None

    def lose(self) -> None:
        """The network connection breaks."""
        self.connection.lost(self.bench.now_ms)

    def subscribe(
        self, *filters: str, qos: int = 0, options: int = 0, identifier: int = 0, packet_id: int = 1
    ) -> tuple[int, ...]:
        """Subscribe and return the codes of SUBACK; what else came stays unread."""
        properties = Properties(subscription_identifiers=(identifier,)) if identifier else None
        wanted = tuple(Filter(each, qos | options) for each in filters)
        self.send(Subscribe(packet_id, wanted, properties or NO_PROPERTIES))
        packets = self._decoder.feed(self.connection.out.pop(0))
        (suback,) = packets
        assert isinstance(suback, Suback)
        if not self.connection.out and self.connection in self.bench.hub.outbox.writes:
            self.bench.hub.outbox.writes.remove(self.connection)
        return suback.codes


class Bench:
    """A hub, its clock, its storage."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        delivery: DeliveryLimits | None = None,
        bindings: tuple[Binding, ...] = (Binding("#", "mqtt"),),
        strategy: str = "round_robin",
        retained: Retained | None = None,
        durable: bool = False,
        delay_limits: DelayLimits | None = None,
    ) -> None:
        self.now_ms = START_MS
        self.forbidden: set[tuple[Operation, str]] = set()
        self.undecided: set[tuple[Operation, str]] = set()
        """What somebody must be asked about first: `answer_questions`."""
        self.mechanisms: dict[str, Mechanism] = {}
        """Ways to authenticate in several steps."""
        self._exchanges: dict[Dialogue, Exchange] = {}
        self.stored: list[PendingAppend] = []
        self.messages: dict[Place, Message] = {}
        """What storage holds."""
        self.log: dict[str, list[CommittedBatch]] = {}
        """The same as batches."""
        ids, lives = itertools.count(1), itertools.count(1)

        def new_hub() -> Hub:
            return Hub(
                bindings=bindings,
                authorize=self._authorize,
                new_client_id=lambda: f"auto-{next(ids)}",
                limits=limits,
                delivery=delivery,
                shared_strategy=strategy,
                retained=retained,
                durable=durable,
                delays=Delays(delay_limits, f"{next(lives)}-"),
            )

        self._topics = tuple(dict.fromkeys(binding.topic for binding in bindings))
        self._new_hub = new_hub
        self.hub = new_hub()
        for topic in self._topics:
            self.hub.positions[topic, 0] = 0
        self._reader = RecordReader(self.hub.names)
        self._offsets: dict[str, int] = {}

    def _authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> None:
        if (operation, resource.name) in self.undecided:
            raise Undecided(resource.name)
        if (operation, resource.name) in self.forbidden:
            raise NotAuthorized(resource.name)

    def dial(self, version: int = V311) -> Device:
        """A network connection that has said nothing yet."""
        return Device(self, version)

    def connect(
        self,
        client_id: str = "",
        *,
        version: int = V311,
        clean: bool = True,
        keep_alive_s: int = 0,
        will: Will | None = None,
        properties: Properties = NO_PROPERTIES,
        principal: Principal = ANONYMOUS,
    ) -> Device:
        """A client that is let in; its CONNACK is in `device.connack`."""
        device = self.dial(version)
        device.send(Connect(client_id, version, clean, keep_alive_s, None, None, will, properties))
        device.connection.authenticated(principal, self.now_ms)
        first = device.connection.out.pop(0)
        (device.connack,) = device._decoder.feed(first)  # type: ignore[attr-defined]
        assert isinstance(device.connack, Connack)  # type: ignore[attr-defined]
        if not device.connection.out and device.connection in self.hub.outbox.writes:
            self.hub.outbox.writes.remove(device.connection)
        return device

    def store(self, error: LakeMQError | None = None) -> int:
        """Let storage answer all that waits: stored and committed, or failed with `error`.
        Returns how many records it was."""
        lanes = self.hub.outbox.appends.take()
        for lane in lanes:
            if error is not None:
                lane.fail(error, self.now_ms)
                continue
            self.stored.append(lane)
            base = self._offsets.get(lane.topic, 0)
            count = len(lane.values)
            self._offsets[lane.topic] = base + count
            lane.settle(range(count), Placed(0, Offset(base)), self.now_ms)
            data = encode_batch(lane.columns(), now_ms=self.now_ms, base_offset=base)
            self.commit(CommittedBatch(lane.topic, 0, Offset(base), data))
        return sum(len(lane.values) for lane in lanes)

    def commit(self, batch: CommittedBatch) -> None:
        self.log.setdefault(batch.topic, []).append(batch)
        for message, meta in self._reader.read(batch):
            assert message.place is not None
            self.messages[message.place] = message
            self.hub.note_stored(message, meta)
            self.hub.route(message, self.now_ms)
            committed(self.hub.histories, message, self.now_ms)
        end = read_header(batch.data).last_offset + 1
        self.hub.positions[batch.topic, batch.partition] = end

    def begin_read(self) -> Callable[[], None] | None:
        """Fetch what a history asked for, as of now; call the result to hand it over."""
        if not self.hub.outbox.reads:
            return None
        history, generation = self.hub.outbox.reads.pop(0)
        if history.generation != generation:
            return lambda: None
        cursor = history.next_cursor()
        fetched: tuple[Iterator[Message], int] | None = None
        if cursor is not None:
            key = (cursor.topic, cursor.partition)
            if cursor.offset is None:
                history.located(cursor, history.start.offset, self.hub.positions.get(key, 0))
            if history.rest is not None:
                fetched = history.rest[1:]
            elif history.approach(cursor, self.hub.positions.get(key, 0)):
                assert cursor.offset is not None
                fetched = self._fetch(history, cursor.topic, cursor.offset)

        def finish() -> None:
            if history.generation != generation:
                return
            if cursor is not None and fetched is not None:
                end = self.hub.positions.get((cursor.topic, cursor.partition), 0)
                history.fetched(cursor, *fetched, end, self.now_ms)
            read_on(self.hub, history, cursor, self.now_ms)

        return finish

    def _fetch(self, reading: Reading, topic: str, offset: int) -> tuple[Iterator[Message], int]:
        """Messages of up to three batches from `offset` on, and the offset behind them."""
        batches = [
            one for one in self.log.get(topic, ()) if read_header(one.data).last_offset >= offset
        ][:3]
        messages = [one for batch in batches for one in self._reader.messages(batch)]
        behind = read_header(batches[-1].data).last_offset + 1 if batches else offset
        return iter(messages), behind

    def answer_steps(self) -> None:
        """Let mechanisms answer what clients said."""
        steps, self.hub.outbox.exchanges = self.hub.outbox.exchanges, []
        for connection in steps:
            enhanced = connection.enhanced
            assert enhanced is not None
            dialogue = enhanced.dialogue
            assert dialogue is not None
            assert dialogue.said is not None
            try:
                if dialogue not in self._exchanges:
                    mechanism = self.mechanisms.get(enhanced.method)
                    if mechanism is None:
                        raise UnknownMechanism(enhanced.method)
                    self._exchanges[dialogue] = mechanism.begin(enhanced.credentials)
                outcome = _ended(self._exchanges[dialogue].step(dialogue.said))
            except LakeMQError as error:
                reason = connect_reason(error)
                authenticating.refused(connection, dialogue, reason, str(error), self.now_ms)
                continue
            if isinstance(outcome, Challenge):
                authenticating.challenged(connection, dialogue, outcome.data, self.now_ms)
            else:
                authenticating.accepted(
                    connection, dialogue, outcome.principal, outcome.data, self.now_ms
                )

    def answer_questions(self) -> list[str]:
        """Let the one who is asked answer all that waits; returns about which names."""
        questions, self.hub.outbox.questions = self.hub.outbox.questions, []
        for question, then in questions:
            self.undecided.discard((question.operation, question.resource.name))
            then(self.now_ms)
        return [question.resource.name for question, _ in questions]

    def load(self) -> None:
        """Fetch from storage what sessions and replays wait for, and answer who is who."""
        self.answer_steps()
        self.load_messages()
        while (finish := self.begin_read()) is not None:
            finish()

    def turn(self) -> None:
        """Send some of the retained messages that are due."""
        owing, self.hub.outbox.retained = self.hub.outbox.retained, []
        for connection in owing:
            send_retained(connection, self.now_ms)

    def load_messages(self) -> None:
        """Fetch from storage what sessions wait for."""
        while self.hub.outbox.loads:
            outbound = self.hub.outbox.loads.pop(0).outbound
            wanted = outbound.missing()
            found = [(one, self.messages.get(one.place)) for one in wanted if one.place]
            outbound.loaded(found, self.now_ms)

    def pass_time(self, seconds: float) -> None:
        self.now_ms += int(1000 * seconds)
        self.hub.tick(self.now_ms)
        while release_due(self.hub, self.now_ms):
            pass


def _ended(steps: Coroutine[Any, Any, Challenge | Accepted]) -> Challenge | Accepted:
    """The result of a coroutine that awaits nothing."""
    try:
        steps.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("it waits for something")


def disconnected_with(device: Device) -> int | None:
    """Reason code of the DISCONNECT that the broker sent last; None: it sent none."""
    assert device.version == V5
    found = [each.reason for each in device.received() if isinstance(each, Disconnect)]
    return found[-1] if found else None
