"""What this node does as the owner of sessions: it claims them at their homes, has them kept there,
and lets go of them when their home says so. Edge: awaits homes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import LakeMQError, Unavailable
from lakemq.broker_core.api.limits.user_shares import owner_of
from lakemq.plugins.mqtt.homes import frames, moving
from lakemq.plugins.mqtt.homes.frames import Asked, Code, Kind, Outcome, Saved
from lakemq.plugins.mqtt.homes.handed_over import HandedOver
from lakemq.plugins.mqtt.homes.moving import STATE_MAX_BYTES, Arriving
from lakemq.plugins.mqtt.homes.table import Claim, Known, Owned, Owner
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.session.connecting import claim_refused, claimed
from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.state.ledger import Writing
from lakemq.plugins.mqtt.state.sessions import Coming, Positions, Session
from lakemq.plugins.mqtt.state.snapshots import read_session
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot
from lakemq.plugins.mqtt.wire.reasons import Reason

_log: Final = logging.getLogger(__name__)
CLAIM_WAIT_S: Final = 8.0
"""How long a client waits for CONNACK while its home can't be reached."""
SAVE_WAIT_S: Final = 5.0
"""How long the keeping of a session is tried, before those who wait for it are disconnected."""
LET_IN_S: Final = 5.0
"""How long CONNACK waits for the journal: a partition may have no leader."""
_CALL_S: Final = 3.0
_KEPT_S: Final = 0.7
"""How long what is let go of may wait for its home to keep it; then the home asks again."""
_SETTLE_S: Final = 0.3
"""How long what is let go of may wait for QoS 2 publishes that are being stored."""
_HOME_KNOWN_S: Final = 0.3
"""How long a node that says it is a home may be ahead of what is known here."""
_RETRY_FIRST_MS: Final = 20
_RETRY_MAX_MS: Final = 500
_rng: Final = random.Random()
_REFUSALS: Final = {
    Code.ANOTHERS: (
        Reason.NOT_AUTHORIZED, "the session of this client identifier is another user's",
    ),
    Code.FULL: (Reason.QUOTA_EXCEEDED, "too many sessions"),
    Code.SUPERSEDED: (Reason.SERVER_BUSY, "the client connected elsewhere"),
    Code.FAILED: (Reason.SERVER_UNAVAILABLE, "the node that knows of the session can't be reached"),
}  # fmt: skip


class Homes(Protocol):
    """The way to the homes of clients."""

    def home_of(self, client_id: str) -> str:
        """The node; empty: none leads now."""

    def partition_of(self, client_id: str) -> int:
        """Raises UnknownTopic."""

    async def ends(self) -> Positions:
        """Where bound partitions end, as their leaders know."""

    async def ask(self, node: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask a node, this one too. Raises LakeMQError."""


class SessionOwner:
    """The sessions of this node. Lives on the event loop."""

    def __init__(
        self,
        hub: Hub,
        homes: Homes,
        begin: Callable[[Coroutine[Any, Any, None]], object],
        after: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`begin` runs a task until the plugin stops; `after` is called when there may be something
        to write."""
        self.on_kept: Callable[[Iterable[str]], None] = lambda client_ids: None
        """Called with sessions that homes keep from now on, or that are other nodes'."""
        self.writing: set[asyncio.Task[None]] = set()
        self._hub = hub
        self._homes = homes
        self._begin = begin
        self._after = after
        self._now_ms = now_ms
        self.handed_over = HandedOver(hub)
        self._number = now_ms()
        self._owned: moving.OwnedSessions | None = None
        """None: no home has asked yet."""
        self._parted: dict[str, int] = {}
        """Sessions that were to be let go of while they were being claimed -> the epoch."""
        self._unkept: set[str] = set()
        """Sessions of before nodes shared them, which no home keeps yet."""
        self._claiming: dict[str, int] = {}
        """How many claims of a client are under way."""

    # -- claims

    def claim(self, connections: Sequence[Connection]) -> None:
        """Clients have connected: get their sessions."""
        deadline = asyncio.get_running_loop().time() + CLAIM_WAIT_S
        for one in connections:
            self._claiming[one.client_id] = self._claiming.get(one.client_id, 0) + 1
        self._begin(self._claim(list(connections), deadline))

    async def _claim(self, connections: list[Connection], deadline: float) -> None:
        backoff, loop = (
            Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random),
            asyncio.get_running_loop(),
        )
        while connections:
            groups: dict[str, list[Connection]] = {}
            for one in connections:
                groups.setdefault(self._home_of(one.client_id), []).append(one)
            found = await asyncio.gather(*(self._claim_at(*each) for each in groups.items()))
            connections = [one for some in found for one in some if not self._is_over(one)]
            if connections and loop.time() > deadline:
                for one in connections:
                    self._end_claim(one.client_id)
                    claim_refused(one, *_REFUSALS[Code.FAILED], self._now_ms())
                break
            if connections:
                await asyncio.sleep(backoff.next_s())
        self._after()

    def _is_over(self, connection: Connection) -> bool:
        if connection.ended:
            self._end_claim(connection.client_id)
        return connection.ended

    def _end_claim(self, client_id: str) -> None:
        left = self._claiming.pop(client_id) - 1
        if left:
            self._claiming[client_id] = left
        else:
            self._parted.pop(client_id, None)

    def _home_of(self, client_id: str) -> str:
        try:
            return self._homes.home_of(client_id)
        except LakeMQError:
            return ""

    async def _claim_at(self, node: str, connections: list[Connection]) -> list[Connection]:
        """Claim at one home; returns those that are to be claimed again."""
        if not node:
            return connections
        again: list[Connection] = []
        for start in range(0, len(connections), frames.ROWS_MAX):
            # Some may have ended while others were claimed, or while this waited.
            some = [
                one
                for one in connections[start : start + frames.ROWS_MAX]
                if not self._is_over(one)
            ]
            if not some:
                continue
            claims = [self._claim_of(one) for one in some]
            try:
                asked = frames.claims_bytes(claims)
                answer = await self._homes.ask(node, asked, _CALL_S)
                outcomes = frames.read_outcomes(answer, len(some))
            except (LakeMQError, BadSnapshot) as error:
                _log.info("%s grants no sessions now: %s", node, error)
                again += some
                continue
            again += self._granted(some, outcomes)
        return again

    def _claim_of(self, connection: Connection) -> Claim:
        hub, packet, client_id = self._hub, connection.connect, connection.client_id
        assert packet is not None
        ended = client_id in (hub.ended or {})
        return Claim(
            client_id,
            Owner("", 0),  # the connection between the nodes shows it
            owner_of(connection.principal),
            packet.clean_start or ended,
            client_id in hub.sessions,
            hub.limits.session_of_another_user != "refuse",
        )

    def _granted(
        self, connections: Sequence[Connection], outcomes: Sequence[Outcome]
    ) -> list[Connection]:
        again: list[Connection] = []
        arriving: list[Arriving] = []
        waiting: list[tuple[Connection, Outcome]] = []
        for one, outcome in zip(connections, outcomes, strict=True):
            if outcome.code is Code.FAILED:
                again.append(one)
                continue
            if outcome.code is Code.DONE and self._parted.get(one.client_id, 0) >= outcome.epoch:
                outcome = Outcome(Code.SUPERSEDED)
            if outcome.here and one.client_id not in self._hub.sessions:
                again.append(one)  # it has ended here meanwhile: it is as its home has kept it
                continue
            if outcome.code is not Code.DONE:
                self._end_claim(one.client_id)
                self._hub.counters.connections_refused += 1
                claim_refused(one, *_REFUSALS[outcome.code], self._now_ms())
                continue
            self._receive(one, outcome, arriving)
            coming = self._coming(one, outcome)
            if coming is None:
                waiting.append((one, outcome))
            else:
                coming.then(self._in_time(partial(self._ready, [(one, outcome)])))
        ready = partial(self._ready, waiting)
        if arriving:
            self._begin(self._take_over(arriving, ready))
        else:
            ready(self._now_ms())
        return again

    def _coming(self, one: Connection, outcome: Outcome) -> Coming | None:
        """The way that the client's session still has to here, by an earlier claim of this node:
        what an owner that is gone had stored of QoS 2 is not known before its end."""
        local = self._hub.sessions.get(one.client_id)
        return local.coming if local is not None and outcome.here else None

    def _in_time(self, ready: Callable[[int], None]) -> Callable[[int], None]:
        """Call it once: after `LET_IN_S` at the latest."""
        let_in = _Once(ready)
        asyncio.get_running_loop().call_later(LET_IN_S, lambda: let_in(self._now_ms()))
        return let_in

    def _receive(self, one: Connection, outcome: Outcome, arriving: list[Arriving]) -> None:
        """Put what was granted where it belongs."""
        hub = self._hub
        local = hub.sessions.get(one.client_id)
        if local is not None and outcome.here:
            local.epoch = max(local.epoch, outcome.epoch)
            return
        if local is not None and local.epoch < outcome.epoch:
            self._hub.counters.sessions_left += 1
            moving.lose(hub, local, self._now_ms())
        if outcome.state is None:
            return
        try:
            state = read_session(one.client_id, outcome.state)
        except BadSnapshot as error:
            _log.error("session of %r can't be read: %s", one.client_id, error)
            return
        clean = one.connect is not None and one.connect.clean_start
        arriving.append(Arriving(state, outcome.epoch, outcome.unclean, clean))

    async def _take_over(self, arriving: Sequence[Arriving], ready: Callable[[int], None]) -> None:
        # What an owner that is gone had stored of QoS 2 must be seen here, before its client sends
        # it again.
        unclean = any(one.unclean for one in arriving)
        at_least = await self._homes.ends() if unclean else {}
        arriving = [one for one in arriving if self._is_newer(one)]
        self._hub.counters.sessions_taken += len(arriving)
        let_in = self._in_time(ready)
        left_out = moving.take_over(self._hub, arriving, let_in, at_least, self._now_ms())
        for client_id, why in left_out:
            text = "session of %r: left out: %s"
            _log.error(text, client_id, why, extra={"client": client_id})
        self._after()

    def _is_newer(self, arriving: Arriving) -> bool:
        """Whether a session was granted later than the one that is here by now, which then goes: it
        may have come by an earlier claim of this node, and what it was told since did not count."""
        local = self._hub.sessions.get(arriving.state.client_id)
        if local is not None and local.epoch < arriving.epoch:
            moving.lose(self._hub, local, self._now_ms())
            local = None
        return local is None

    def _ready(self, waiting: Iterable[tuple[Connection, Outcome]], now_ms: int) -> None:
        """Sessions are where this node is: let their clients in."""
        hub = self._hub
        for one, outcome in waiting:
            session = hub.sessions.get(one.client_id)
            # It may have gone on to another node while it was on its way here.
            parted = self._parted.get(one.client_id, 0) >= outcome.epoch
            newer = session is not None and session.epoch > outcome.epoch
            self._end_claim(one.client_id)
            if parted or newer:
                claim_refused(one, *_REFUSALS[Code.SUPERSEDED], now_ms)
                if session is not None and session.epoch == outcome.epoch:
                    moving.lose(hub, session, now_ms)
            elif one.ended:
                if session is None:
                    self._nothing_here(one.client_id, outcome.epoch)
                elif hub.ledger is not None:
                    hub.ledger.schedule_write(one.client_id)
            else:
                claimed(one, outcome.epoch, outcome.kept, now_ms)
        self._after()

    def _nothing_here(self, client_id: str, epoch: int) -> None:
        """Its home believes that this node has the session."""
        if self._hub.ended is not None and self._hub.ledger is not None:
            self._hub.ended[client_id] = epoch
            self._hub.ledger.schedule_write(client_id)

    def adopt(self, granted: dict[str, asyncio.Future[Outcome]]) -> None:
        """Take sessions whose node is gone: their queues go on, their wills are published."""
        if granted:
            self._begin(self._adopt(granted))

    async def _adopt(self, granted: dict[str, asyncio.Future[Outcome]]) -> None:
        arriving = []
        for client_id, future in granted.items():
            outcome = await future
            local = self._hub.sessions.get(client_id)
            if outcome.code is not Code.DONE or local is not None:
                continue
            if outcome.state is None:  # it has ended
                self._nothing_here(client_id, outcome.epoch)
                continue
            try:
                state = read_session(client_id, outcome.state)
            except BadSnapshot as error:
                _log.error("session of %r can't be read: %s", client_id, error)
                continue
            arriving.append(Arriving(state, outcome.epoch, outcome.unclean, ends=False))
        if arriving:
            await self._take_over(arriving, lambda now_ms: self._after())
            for one in arriving:
                if self._hub.ledger is not None:
                    self._hub.ledger.schedule_write(one.state.client_id)
        self._after()

    async def offer(self, count_max: int) -> None:
        """This node is drained: offer homes the sessions of clients that are away."""
        groups: dict[str, list[tuple[str, int]]] = {}
        for one in self._hub.sessions.values():
            if one.connection is None and one.epoch and one.client_id not in self._claiming:
                groups.setdefault(self._home_of(one.client_id), []).append(
                    (one.client_id, one.epoch)
                )
                count_max -= 1
                if not count_max:
                    break
        for node, sessions in groups.items():
            if node:
                with contextlib.suppress(LakeMQError):
                    await self._homes.ask(node, frames.offer_bytes(sessions), _CALL_S)

    # -- letting go

    async def _check_home(self, node: str, client_ids: Sequence[str]) -> None:
        """No other node may say what becomes of sessions: raises Unavailable. One that has just
        come to lead may know of it first."""
        end = asyncio.get_running_loop().time() + _HOME_KNOWN_S
        while stranger := next((one for one in client_ids if self._home_of(one) != node), None):
            if asyncio.get_running_loop().time() > end:
                raise Unavailable(f"node {node} is not known here as the home of {stranger!r}")
            await asyncio.sleep(0.02)

    async def let_go(self, node: str, data: bytes) -> bytes:
        """Answer `Kind.LET_GO` of a node. Raises BadSnapshot; Unavailable unless it is the home."""
        asked = frames.read_asks(data)
        await self._check_home(node, [one.client_id for one in asked])
        for one in asked:
            if one.client_id in self._claiming:
                self._parted[one.client_id] = max(one.epoch, self._parted.get(one.client_id, 0))
        sessions = [moving.part(self._hub, one, self._now_ms()) for one in asked]
        await self._until_kept(asked, sessions)
        end = asyncio.get_running_loop().time() + _SETTLE_S
        while not all(one is None or moving.is_settled(one) for one in sessions):
            if asyncio.get_running_loop().time() > end:
                break
            await asyncio.sleep(0.005)
        states = []
        for one, session in zip(asked, sessions, strict=True):
            # Its home asks again: the answer did not come there.
            self.handed_over.unused(one.client_id, one.epoch, self._now_ms())
            state = moving.hand_over(self._hub, one, session, self._now_ms())
            if state and session is not None:
                self.handed_over.note(session, one.epoch, self._now_ms())
            self._hub.counters.sessions_left += state is not None
            states.append(state)
        self._after()
        self.on_kept([one.client_id for one in asked])
        return frames.states_bytes(states)

    async def _until_kept(self, asked: Sequence[Asked], sessions: Sequence[Session | None]) -> None:
        """What was promised before nodes shared sessions is in this node's memory alone, and would
        be lost with an answer that is. Raises Unavailable if its home can't keep it now."""
        waiting = []
        for one, session in zip(asked, sessions, strict=True):
            if session is not None and session.durable and one.client_id in self._unkept:
                session.epoch = session.epoch or one.epoch
                waiting.append(session)
                if self._hub.ledger is not None:
                    self._hub.ledger.schedule_write(one.client_id)
        self._after()
        end = asyncio.get_running_loop().time() + _KEPT_S
        while any(one.client_id in self._unkept for one in waiting):
            if asyncio.get_running_loop().time() > end:
                raise Unavailable("sessions are not kept by their home yet; ask again")
            await asyncio.sleep(0.005)

    # -- what is kept

    def save(self, writing: Writing) -> None:
        """Have homes keep sessions as they are now."""
        rows: list[Saved] = []
        for client_id in writing.client_ids:
            self._number += 1
            row = moving.saved(self._hub, client_id, self._number)
            if row is not None:
                rows.append(row)
        task = asyncio.get_running_loop().create_task(self._save(rows))
        self.writing.add(task)
        task.add_done_callback(self.writing.discard)

    async def _save(self, rows: list[Saved]) -> None:
        newest = {one.client_id: one for one in rows}
        codes = dict.fromkeys(newest, Code.FAILED)
        waiting = [one for one in rows if one.state is None or len(one.state) <= STATE_MAX_BYTES]
        loop, backoff = (
            asyncio.get_running_loop(),
            Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random),
        )
        deadline = loop.time() + SAVE_WAIT_S
        while waiting:
            groups: dict[str, list[Saved]] = {}
            for each in waiting:
                if (one := self._heard_of(each)) is not None:
                    newest[one.client_id] = one
                    groups.setdefault(self._home_of(one.client_id), []).append(one)
            found = await asyncio.gather(*(self._save_at(*each) for each in groups.items()))
            for some in found:
                codes.update(some)
            waiting = [one for one in waiting if codes[one.client_id] is Code.FAILED]
            if waiting and loop.time() > deadline:
                break
            if waiting:
                await asyncio.sleep(backoff.next_s())
        self._saved(list(newest.values()), codes)
        self._after()

    def _heard_of(self, row: Saved) -> Saved | None:
        """What this node had before nodes shared sessions has its epoch once its home has heard of
        it (`announce`). None: until then the home would take the row for a stranger's."""
        session = self._hub.sessions.get(row.client_id)
        if row.epoch or not row.alive or session is None:
            return row
        return row._replace(epoch=session.epoch) if session.epoch else None

    async def _save_at(self, node: str, rows: Sequence[Saved]) -> dict[str, Code]:
        codes = {one.client_id: Code.FAILED for one in rows}
        if not node:
            return codes
        for some in _pieces(rows):
            try:
                answer = await self._homes.ask(node, frames.saves_bytes(some), _CALL_S)
                found = frames.read_codes(answer, len(some))
            except (LakeMQError, BadSnapshot) as error:
                _log.info("%s keeps no sessions now: %s", node, error)
                continue
            codes.update({one.client_id: code for one, code in zip(some, found, strict=True)})
        return codes

    def _saved(self, rows: Sequence[Saved], codes: dict[str, Code]) -> None:
        hub, now_ms = self._hub, self._now_ms()
        ledger, ended = hub.ledger, hub.ended
        assert ledger is not None and ended is not None
        stale: list[Session] = []
        kept: list[str] = []
        failed: dict[str, None] = {}
        for one in rows:
            code, session = codes[one.client_id], hub.sessions.get(one.client_id)
            if code is Code.STALE and one.client_id in self._claiming:
                code = Code.FAILED  # by this node's own claim, perhaps: the session stays
            if code is Code.FAILED:
                failed[one.client_id] = None
                continue
            kept.append(one.client_id)
            self._unkept.discard(one.client_id)
            if not one.alive and ended.get(one.client_id) == one.epoch:
                del ended[one.client_id]
            if code is Code.STALE and session is not None and session.epoch == one.epoch:
                stale.append(session)
        # Before any client is answered: nothing is promised of a session that is another node's.
        for session in stale:
            self._hub.counters.sessions_left += 1
            moving.lose(hub, session, now_ms)
        alive = {one.client_id for one in rows if one.state is not None} - failed.keys()
        unanswered = ledger.done(alive, hub.delivered, now_ms, failed)
        hub.not_kept(unanswered, "the session's home can't keep it", now_ms)
        self.on_kept(kept)

    # -- what homes know

    def owned(self, data: bytes) -> bytes:
        """Answer `Kind.OWNED`. Raises BadSnapshot, UnknownTopic."""
        partition, page, pages = frames.read_owned_request(data)
        if self._owned is None:
            self._owned = moving.OwnedSessions(self._hub, self._homes.partition_of)
        pages = pages or self._owned.pages(partition)
        return frames.owned_bytes(pages, self._owned.page(partition, page, pages))

    async def known(self, node: str, data: bytes) -> bytes:
        """Answer `Kind.KNOWN` of a node. Raises BadSnapshot; Unavailable unless it is the home."""
        known = frames.read_known(data)
        await self._check_home(node, [one.client_id for one in known])
        self._know(known)
        return b""

    def _know(self, known: Sequence[Known]) -> None:
        self._hub.counters.sessions_left += moving.left_behind(self._hub, known, self._now_ms())
        for one in known:
            if not one.epoch:
                self.handed_over.unused(one.client_id, one.told, self._now_ms())
        self.on_kept([one.client_id for one in known if not one.epoch])
        self._after()

    def begin(self) -> None:
        """Nodes share sessions from now on."""
        self._unkept = {one.client_id for one in self._hub.sessions.values() if not one.epoch}
        self._begin(self.announce(all_of_them=False))

    async def announce(self, *, all_of_them: bool) -> None:
        """Tell homes what this node owns, unless they know: what it had before nodes shared
        sessions, or `all_of_them`, since it has registered again. Until they have heard of it."""
        waiting = dict.fromkeys(
            one.client_id for one in self._hub.sessions.values() if all_of_them or not one.epoch
        )
        while waiting:
            groups: dict[str, list[Owned]] = {}
            for client_id in list(waiting):
                session = self._hub.sessions.get(client_id)
                if session is None:
                    del waiting[client_id]
                    continue
                urgent = session.will is not None
                row = Owned(client_id, session.epoch, owner_of(session.principal), urgent)
                groups.setdefault(self._home_of(client_id), []).append(row)
            for node, rows in groups.items():
                for start in range(0, len(rows) if node else 0, moving.PAGE_ROWS):
                    some = rows[start : start + moving.PAGE_ROWS]
                    try:
                        asked = frames.owned_bytes(1, some, Kind.ANNOUNCE)
                        known = frames.read_known(await self._homes.ask(node, asked, _CALL_S))
                    except (LakeMQError, BadSnapshot) as error:
                        _log.info("%s does not hear yet what this node has: %s", node, error)
                        continue
                    for one in known:
                        waiting.pop(one.client_id, None)
                    self._know(known)
            if waiting:
                await asyncio.sleep(_RETRY_MAX_MS / 1000)


class _Once:
    """Calls back once."""

    def __init__(self, call: Callable[[int], None]) -> None:
        self._call: Callable[[int], None] | None = call

    def __call__(self, now_ms: int) -> None:
        call, self._call = self._call, None
        if call is not None:
            call(now_ms)


def _pieces(rows: Sequence[Saved]) -> Iterable[list[Saved]]:
    """Rows of one message each."""
    piece: list[Saved] = []
    size = 0
    for one in rows:
        row_bytes = len(one.client_id) + len(one.state or b"")
        if piece and (size + row_bytes > frames.MESSAGE_BYTES or len(piece) >= frames.ROWS_MAX):
            yield piece
            piece, size = [], 0
        piece.append(one)
        size += row_bytes
    if piece:
        yield piece
