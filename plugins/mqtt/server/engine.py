"""What drives the hub: the clock, the broker's futures and taps, and the turns of the loop.

Whatever happens in one turn of the event loop is gathered: one write per connection, one append per
topic and principal. Nothing is awaited per packet.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import version
from typing import Any, Final, Protocol

from lakemq.broker_core.api.errors import LakeMQError, TopicExists
from lakemq.broker_core.api.ports import BoundPublish, Broker
from lakemq.broker_core.api.tracing import Traces
from lakemq.broker_core.api.types import (
    AccessContext,
    Acks,
    Operation,
    Placed,
    Principal,
    Resource,
)
from lakemq.plugins.mqtt.config import BindingSettings, MqttSettings
from lakemq.plugins.mqtt.feeds.arrivals import Arrivals
from lakemq.plugins.mqtt.feeds.cluster_feeds import ClusterFeeds
from lakemq.plugins.mqtt.feeds.express import Express
from lakemq.plugins.mqtt.feeds.history_reader import HistoryReader
from lakemq.plugins.mqtt.feeds.reading import Salvage
from lakemq.plugins.mqtt.homes.service import SharedSessions
from lakemq.plugins.mqtt.interest.exchange import InterestExchange
from lakemq.plugins.mqtt.interest.filtering import FILTER, InterestFilter
from lakemq.plugins.mqtt.ops.draining import Draining
from lakemq.plugins.mqtt.routing.bans import Bans
from lakemq.plugins.mqtt.routing.delayed import Delays
from lakemq.plugins.mqtt.routing.delaying import release_due
from lakemq.plugins.mqtt.routing.history import Reading
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.routing.outbox import Effects
from lakemq.plugins.mqtt.routing.retained import Retained
from lakemq.plugins.mqtt.server import clock
from lakemq.plugins.mqtt.server.logins import Logins
from lakemq.plugins.mqtt.server.shared_groups import SharedGroups
from lakemq.plugins.mqtt.server.state_store import MqttJournal
from lakemq.plugins.mqtt.server.system_channel import SystemChannel
from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.session.subscribing import send_retained
from lakemq.plugins.mqtt.state.appends import PendingAppend
from lakemq.plugins.mqtt.state.decisions import Decisions
from lakemq.plugins.mqtt.state.gathering import Gathering
from lakemq.plugins.mqtt.state.peer import Peer
from lakemq.plugins.mqtt.state.questions import Continuation, ExclusiveClaim, Question
from lakemq.plugins.mqtt.state.records import BROKERS_OWN, RecordReader
from lakemq.plugins.mqtt.state.sessions import Session
from lakemq.plugins.mqtt.state.slow import SlowClients
from lakemq.plugins.mqtt.wire.reasons import Reason

log = logging.getLogger(__name__)

VERSION: Final = version("lakemq")
TICK_S: Final = 1.0
CLOSE_LINGER_S: Final = 5.0
"""How long a closed connection may take to read what was written to it, and a stopping engine may
wait for appends."""
_LAST_ANSWERS_S: Final = 1.0
"""How long a stopping engine waits for clients to read the answers to their last publishes."""


def _new_client_id() -> str:
    # Not to be guessed: a client identifier names a session that may be taken over.
    return f"auto-{secrets.token_hex(10)}"


class Link(Protocol):
    """One network connection, as the engine needs it."""

    connection: Connection

    @property
    def overloaded(self) -> bool:
        """Whether nothing more should be read for now."""

    def flush(self) -> None:
        """Write what the connection has to say; close it if it is over."""

    def resume_reading(self) -> None:
        """Read from the socket again, if that was paused."""

    def read_on(self) -> None:
        """The client is known, or asked for more: read again unless something else forbids it."""

    def pause(self) -> None:
        """Read no more until `resume_reading` while `MqttEngine.reads`."""

    def abort(self) -> None:
        """Close without waiting for the client to read."""


class MqttEngine:
    """The MQTT side of a node, shared by its listeners: open while any of them is."""

    reads = True
    """Whether sockets may be read; False: the engine is about to disconnect its clients."""

    def __init__(self, settings: MqttSettings, broker: Broker) -> None:
        self.settings, self.broker = settings, broker
        self._clock_base_ms = clock.time_ns() // 1_000_000 - clock.monotonic_ns() // 1_000_000
        self.hub = Hub(
            bindings=[binding.binding() for binding in settings.bindings],
            authorize=broker.authorize,
            new_client_id=_new_client_id,
            limits=settings.limits(),
            delivery=settings.delivery_limits(),
            retained=Retained(settings.retained_count_max, settings.retained_max_bytes),
            shared_strategy=settings.shared_strategy,
            durable=settings.durable,
            bans=Bans(settings.ban_rules()),
            slow=SlowClients(settings.slow_ms, settings.slow_count_max, settings.slow_expiry_ms),
            delays=Delays(settings.delay_limits(), f"{secrets.token_hex(6)}-"),
            rewrites=[rule.rule() for rule in settings.rewrites],
            auto_subscriptions=[(one.filter, one.options()) for one in settings.auto_subscriptions],
        )
        self.hub.rights.charge = broker.charge
        self.hub.rights.withdrawn_from = broker.ended
        self.links: dict[Peer, Link] = {}
        self.paused: dict[Link, None] = {}
        """Links whose sockets are not read, until fewer of their publishes are being stored."""
        self._reader = RecordReader(self.hub.names)
        salvage = Salvage(self.hub.counters)
        self.arrivals = Arrivals(self.hub, self._reader, salvage, self.after, self.now_ms)
        accepts = self.arrivals.accepts
        self.journal = MqttJournal(
            self.hub, broker, self._reader, accepts, self.now_ms, settings.checkpoint_records,
            self.after,
        )  # fmt: skip
        self._history = HistoryReader(
            self.hub, broker, self._reader, self.arrivals.belongs, self.now_ms, salvage
        )
        self.shared = SharedSessions(self.hub, broker, self._begin, self.after, self.now_ms)
        self.journal.save_shared = self.shared.save
        self.journal.shared_writes = self.shared.owner.writing
        self.shared.owner.on_kept = self.journal.forget_sessions
        self.draining, self._logins = Draining(self.hub, broker), Logins(broker, self.now_ms)
        self.interest = InterestExchange(self.hub.index, broker, settings.shared_strategy)
        self._groups = SharedGroups(self.hub, self.interest, self.later, self.after, self.now_ms)
        self.express = Express(self.hub, self.interest.others, self.now_ms, self.after)
        self._users = self._last_checkpoint_ms = self._last_system_ms = 0
        self.loop: asyncio.AbstractEventLoop
        self.on_tick: list[Callable[[], None]] = []
        """Called about once a second."""
        self._taps: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._deciding: set[asyncio.Task[None]] = set()
        """Those that find out what clients may do."""
        self._appending: dict[PendingAppend, int] = {}  # -> records without an outcome
        self._gathering = Gathering(self.later, self._turn_if_due)
        """Of topics of one partition."""
        self._progress = asyncio.Event()
        """Set when nothing is being appended any more, and when a network connection is gone."""
        self._feeds: ClusterFeeds
        self._system = SystemChannel(self.hub, broker, VERSION, self.now_ms)
        self.turn_due = self._in_turn = False
        """Whether a turn is scheduled; whether one is running."""
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def node_id(self) -> str:
        """Of the node."""
        return self.broker.node_id

    def _why(
        self, principal: Principal, operation: Operation, name: str, context: AccessContext
    ) -> str:
        resource = Resource("topic_name", name)
        return self.broker.verdict(principal, operation, resource, context).reason

    def now_ms(self) -> int:
        """Milliseconds since the epoch: wall clock at start, monotonic from then on, so that
        setting the system's clock moves no timer."""
        return self._clock_base_ms + clock.monotonic_ns() // 1_000_000

    def follow(self, traces: Traces) -> None:
        """Make spans, from now on. Without this nothing in the way of a message looks for them."""
        self.hub.traces = traces
        self.arrivals.follow(traces)

    # -- life

    async def open(self) -> None:
        """A listener starts. The first one creates the bound topics and listens to them."""
        self._users += 1
        if self._users > 1:
            return
        # Taps come before positions are read and anything is recovered. What is committed meanwhile
        # is held and delivered behind that, without what lies below `positions`: no record is
        # missed and none is delivered twice.
        self.loop = asyncio.get_running_loop()
        self._gathering.hold(True)
        self.arrivals.hold()
        feeds = self._feeds = ClusterFeeds(self.hub, self.broker, self.arrivals)
        # Replays, and sessions on their way, are not in the index: whatever comes may be theirs.
        feeds.wanted = lambda: None if self.hub.histories else self.interest.wanted()
        feeds.still = lambda one: not self.hub.histories and self.interest.still(one)
        self.hub.on_behind = feeds.read_whole
        # Reversed: the first binding of a topic says how it is created.
        for binding in {one.topic: one for one in reversed(self.settings.bindings)}.values():
            topic = binding.topic
            await self._ensure(binding)
            # What these headers say is believed, so no client may write them (`BROKERS_OWN`).
            self._taps.append(self.broker.reserve_headers(topic, BROKERS_OWN))
            self._taps.append(
                self.broker.tap(topic, functools.partial(self.arrivals.committed, topic))
            )
            feeds.note(self.broker.topic(topic))
        self._taps.append(self.broker.on_access_change(self.hub.access_changed))
        self._taps += feeds.start()
        if self.settings.durable:
            await self.journal.recover()
            self.shared.log_ends.reach = self.journal.delays.reach
            await self.shared.start()
        # Not before: what was restored was not decided now.
        self.hub.delivery.decisions = Decisions(self.settings.decisions_max, self.now_ms)
        self.hub.rights.why = self._why
        self.arrivals.release()
        feeds.begin()
        self.interest.start(self.broker)
        bound = frozenset(binding.topic for binding in self.hub.bindings)
        wants = InterestFilter(self.interest.others, self._reader, bound.__contains__).wants
        self._taps.append(self.broker.filter_batches(FILTER, wants))
        self.express.start(self.broker)
        self._taps += [self.express.stop, self.interest.stop]
        self._system.open()
        self._ticker = self.loop.call_later(TICK_S, self._tick)

    async def _ensure(self, binding: BindingSettings) -> None:
        """Create the topic of a binding if it is absent."""
        if any(topic.name == binding.topic for topic in self.broker.topics()):
            return
        config = binding.topic_config(self.broker.topic_defaults())
        try:
            await self.broker.create_topic(binding.topic, binding.partitions, config)
        except TopicExists:  # another node was quicker
            await self.broker.ensure_topic(binding.topic)

    async def close(self) -> None:
        """A listener stopped. The last one disconnects clients and waits for what is being
        stored."""
        self._users -= 1
        if self._users:
            return
        if self._ticker is not None:
            self._ticker.cancel()
        # Those who were not told before they are disconnected would publish it again.
        publishing = self._stop_reading()
        await self._settle()
        self.reads = True
        # Closing connections may publish wills: those are authorized and stored before sessions are
        # written for the last time.
        for connection in list(self.hub.connections):
            if self.settings.server_reference:
                connection.redirect(False, self.now_ms())
            else:
                text = "the server shuts down"
                connection.close(Reason.SERVER_SHUTTING_DOWN, text, self.now_ms())
        await self._settle()
        await self.journal.keep_everything(self.after, CLOSE_LINGER_S)
        await self.journal.stop()
        self._system.close()
        await self.shared.stop()
        for remove in self._taps:
            remove()
        self._taps.clear()
        self.arrivals.stop()
        for task in list(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._wait_until_gone(publishing)
        for link in list(self.links.values()):
            link.abort()
        await asyncio.sleep(0)  # for `connection_lost`

    def _stop_reading(self) -> set[Peer]:
        """Take nothing more from clients, and deliver nothing whose answer would not be read.
        Returns the connections whose publishes are being stored."""
        self.reads = False
        self._gathering.hold(False)
        for connection in self.hub.connections:
            connection.blocked = True
            if (link := self.links.get(connection)) is not None:
                link.pause()
        return {each for each in self.hub.connections if each.inflow.appends}

    async def _settle(self) -> None:
        """Have all that was taken authorized, stored and answered, as far as that comes in time."""
        self._turn()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LINGER_S):
                while True:
                    under_way: set[asyncio.Future[Any]] = {*self._deciding, *self.journal.writing}
                    if under_way:
                        await asyncio.wait(under_way)
                        await asyncio.sleep(0)  # for those who are called back by them
                        self._turn()
                    elif self._appending:
                        self._progress.clear()
                        await self._progress.wait()
                    else:
                        return

    async def _wait_until_gone(self, connections: set[Peer]) -> None:
        """Until these clients have read everything and closed; not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_ANSWERS_S):
                while not connections.isdisjoint(self.links):
                    self._progress.clear()
                    await self._progress.wait()

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call back after `delay_s` seconds."""
        self.loop.call_later(delay_s, call)

    # -- turns of the loop

    def after(self) -> None:
        """Call after anything that may have left bytes to write or records to append."""
        if not self.turn_due and (self.hub.outbox.writes or self._has_more()):
            self.turn_due = True
            self.loop.call_soon(self._turn)

    def _has_more(self) -> bool:
        """Whether a turn has more to do than to write."""
        ledger = self.hub.ledger
        return (
            self.hub.outbox.has_more(self._gathering.enough)
            or (ledger is not None and ledger.due)
            or (self.hub.delays.unkept and self.journal.delays.due)
        )

    def _turn(self) -> None:
        self.turn_due = False
        self._in_turn = True
        try:
            self._carry_out()
        finally:
            self._in_turn = False
        self.resume_reading()
        self.after()

    def _carry_out(self) -> None:
        """Perform what the core wants done."""
        if not self._has_more():  # as a rule, where nothing is stored
            self._write(self.hub.outbox.take_writes())
            return
        # Appends go first: the disk works while the rest is done. Writes go last, with what the
        # others have added.
        effects = self.hub.outbox.take(self._gathering.enough)
        if effects.appends:
            self.broker.publish_bound([self._append(one) for one in effects.appends])
        # Asked here, where modules are compiled: as a rule there is nothing to write.
        if self.hub.ledger is not None and self.hub.ledger.due:
            self.journal.write_sessions(self.after)
        if self.hub.delays.unkept:
            self.journal.delays.write(self.after)
        self._ask(effects)
        self._serve(effects.retained, effects.exchanges, effects.claims)
        self._write(effects.writes)
        self._write(self.hub.outbox.take_writes())  # what carrying out the others has added

    def _serve(self, retained: list[Peer], exchanges: list[Peer], claims: list[Peer]) -> None:
        """Go on with what clients wait for whose sockets are still there."""
        for peer in retained:
            if (link := self.links.get(peer)) is not None:
                send_retained(link.connection, self.now_ms())
        for peer in exchanges:
            if (link := self.links.get(peer)) is not None:
                self._begin(self._step(link.connection))
        if claims:
            links = [self.links[peer] for peer in claims if peer in self.links]
            self.shared.claim([link.connection for link in links])

    def _ask(self, effects: Effects) -> None:
        """Begin what is awaited beside everything else."""
        for session in effects.loads:
            self._begin(self._load(session))
        for history, generation in effects.reads:
            self._begin(self._read(history, generation))
        for question, then in effects.questions:
            self._begin(self._decide(question, then), self._deciding)
        for topics, then in effects.waits:
            self._begin(self._hear(topics, then))

    def _write(self, peers: list[Peer]) -> None:
        for peer in peers:
            link = self.links.get(peer)
            if link is None:  # its socket is gone
                peer.out.clear()
            else:
                link.flush()

    def _append(self, pending: PendingAppend) -> BoundPublish:
        self._appending[pending] = len(pending.values)
        # What memory acknowledges waits for no fsync that others could share.
        gathers = pending.acks is not Acks.MEMORY and self._has_one_partition(pending.topic)
        if gathers:
            self._gathering.begin(pending.topic, pending.rows, self.now_ms())
        columns, principals = pending.columns(), pending.principals()
        done = functools.partial(self._appended, pending, gathers)
        return BoundPublish(pending.topic, columns, principals, pending.acks, done)

    def _appended(
        self,
        pending: PendingAppend,
        gathers: bool,
        indexes: Sequence[int],
        outcome: Placed | LakeMQError,
    ) -> None:
        missing = self._appending[pending] - len(indexes)
        if missing:
            self._appending[pending] = missing
        else:
            del self._appending[pending]
            if gathers:
                self._gathering.end(pending.topic, len(pending.values))
        pending.settle(indexes, outcome, self.now_ms())
        # What is stored is acknowledged at once; within a turn, its own last step does that.
        if not self._in_turn:
            self._turn()
        if not self._appending:
            self._progress.set()

    def _turn_if_due(self) -> None:
        # At once, not by `after`: what was held is late already.
        if not self.turn_due and self.hub.outbox.ready(self._gathering.enough):
            self._turn()

    def _has_one_partition(self, topic: str) -> bool:
        """Then its log flushes one append after the other, and what comes meanwhile had better
        gather; the partitions of others flush at the same time."""
        try:
            return self.broker.topic(topic).partitions == 1
        except LakeMQError:  # it was deleted: the append is told so
            return False

    def resume_reading(self) -> None:
        """Read again from clients that were held back, where the reason is gone."""
        if self.paused:
            # A copy: a link that reads again leaves the set.
            for link in [one for one in self.paused if not one.overloaded]:
                link.resume_reading()

    def _tick(self) -> None:
        # Scheduled first: an error below must not be the last tick.
        self._ticker = self.loop.call_later(TICK_S, self._tick)
        now_ms = self.now_ms()
        self.hub.tick(now_ms)
        self._release_due()
        if self.settings.durable:
            self.shared.tick()
        if self.draining.due():
            self._begin(self.draining.look())
        self.draining.send_away(now_ms)
        if now_ms - self._last_checkpoint_ms >= self.settings.checkpoint_ms:
            self._last_checkpoint_ms = now_ms
            self.journal.checkpoint()
        interval_ms = 1000 * self.settings.system_topics_interval_s
        if interval_ms and now_ms - self._last_system_ms >= interval_ms:
            self._last_system_ms = now_ms
            self._system.publish()
            self.hub.bans.forget(now_ms)
        self._groups.tick()
        for call in self.on_tick:
            call()
        self.after()

    def _release_due(self) -> None:
        hub, now_ms = self.hub, self.now_ms()
        more = hub.retained.drop_expired(now_ms, alone=not hub.has_peers)
        if release_due(hub, now_ms) or more:
            self.later(0.02, self._release_due)
        self.after()

    # -- who is it

    def ask(self, connection: Connection) -> None:
        """Find out who a client is: beside everything else, unless it is plain."""
        if not self._logins.recognize(connection):
            self._logins.ask(connection, self._begin(self._authenticate(connection)))

    def forget(self, connection: Connection) -> None:
        """A network connection is gone: stop finding out who its client is."""
        self.links.pop(connection, None)
        self._progress.set()
        self._logins.forget(connection)

    async def _authenticate(self, connection: Connection) -> None:
        await self._logins.authenticate(connection)
        self.after()

    async def _step(self, connection: Connection) -> None:
        """Take what a client said to its exchange."""
        if not await self._logins.step(connection):
            return
        link = self.links.get(connection)
        if link is not None:
            link.read_on()
        self.after()

    async def _hear(self, topics: set[str], then: Continuation) -> None:
        """Call back when records of these topics come here."""
        await self._feeds.heard(topics)
        then(self.now_ms())
        self.after()

    async def _decide(self, question: Question | ExclusiveClaim, then: Continuation) -> None:
        """Have found out what a client may do, beside everything else."""
        if isinstance(question, ExclusiveClaim):
            await self.shared.exclusive.answer(question, then)
        else:
            await self.broker.decide(*question)
            then(self.now_ms())
        self.resume_reading()
        self.after()

    def _begin(
        self, work: Coroutine[None, None, None], beside: set[asyncio.Task[None]] | None = None
    ) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        if beside is not None:
            beside.add(task)
            task.add_done_callback(beside.discard)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _load(self, session: Session) -> None:
        await self.journal.load(session)
        self.after()

    async def _read(self, history: Reading, generation: int) -> None:
        await self._history.read(history, generation)
        self.after()
