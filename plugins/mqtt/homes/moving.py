"""How sessions leave a hub and come to one. No IO."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from lakemq.broker_core.api.limits.user_shares import owner_of
from lakemq.plugins.mqtt.homes.catching_up import CatchUp, Coming
from lakemq.plugins.mqtt.homes.frames import Asked, Saved
from lakemq.plugins.mqtt.homes.table import Known, Owned
from lakemq.plugins.mqtt.routing.delaying import note_received
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.routing.replay import held_places, restored
from lakemq.plugins.mqtt.routing.sessions.exclusive import USER_KIND, name_of
from lakemq.plugins.mqtt.routing.subscriptions import SubscriptionIndex
from lakemq.plugins.mqtt.state.sessions import Positions, Session
from lakemq.plugins.mqtt.state.snapshots import SessionState, session_bytes
from lakemq.plugins.mqtt.wire.messages import Place
from lakemq.plugins.mqtt.wire.reasons import Reason

STATE_MAX_BYTES = 3 * 1024 * 1024
"""Of a session: more fits no message between nodes."""
PAGE_ROWS = 2048
"""About how many sessions a page of `owned` has."""
_ELSEWHERE = "the client connected elsewhere"


class Arriving(NamedTuple):
    """A session that this node was granted."""

    state: SessionState
    epoch: int
    unclean: bool
    """Its owner is gone, or did not answer: what was connected then lost its connection."""
    ends: bool
    """It ends at once, since the client wants a clean start: only its will is of interest."""


def part(hub: Hub, asked: Asked, now_ms: int) -> Session | None:
    """The client connected at another node: end its connection here. The session that is to be
    handed over, if it outlives that."""
    session = hub.sessions.get(asked.client_id)
    if session is None or session.epoch > asked.epoch:
        return None
    if session.connection is not None:
        session.connection.close(Reason.SESSION_TAKEN_OVER, _ELSEWHERE, now_ms)
    if hub.sessions.get(asked.client_id) is not session:
        return None
    if asked.ends:
        hub.session_table.end(session, now_ms)
        return None
    return session


def is_settled(session: Session) -> bool:
    """Whether no QoS 2 publish of the session is being stored: where it lies is part of what is
    handed over."""
    return all(isinstance(one, Place) for one in session.incoming.values())


def hand_over(hub: Hub, asked: Asked, session: Session | None, now_ms: int) -> bytes | None:
    """The state of a session that this node has let go of; empty: it has ended here; None: it is as
    its home has kept it, and who gets it finds what else was stored for it. This node never had it,
    or does not know either: what is being stored, or an owner that is gone had stored. Or its
    state is too large."""
    if session is None or hub.sessions.get(asked.client_id) is not session:
        ended = hub.ended or {}
        if asked.client_id not in ended:
            return None
        del ended[asked.client_id]
        if hub.ledger is not None:
            hub.ledger.forget(asked.client_id)
        return b""
    coming = session.coming is not None and session.coming.unclean
    state = (
        None
        if coming or not is_settled(session)
        else session_bytes(session, hub.positions_of(session))
    )
    if state is not None and len(state) > STATE_MAX_BYTES:
        state = None
    hub.session_table.drop(session, now_ms, handed_over=state is not None)
    return state


def lose(hub: Hub, session: Session, now_ms: int) -> None:
    """Another node owns the session, as its home says: this one has nothing to hand over."""
    connection = session.connection
    hub.session_table.drop(session, now_ms, handed_over=False)
    if connection is not None:
        session.connection = None
        connection.close(Reason.SESSION_TAKEN_OVER, _ELSEWHERE, now_ms)


def take_over(
    hub: Hub,
    arriving: Sequence[Arriving],
    done: Callable[[int], None],
    at_least: Positions,
    now_ms: int,
) -> list[tuple[str, str]]:
    """Have sessions that this node was granted; `done` is called when they have got everything that
    was committed, and this node is at `at_least`. Returns what of them was left out: client id, and
    why."""
    left_out: list[tuple[str, str]] = []
    index, coming, ends = SubscriptionIndex(), [], []
    for one in arriving:
        into = hub.index if one.ends else index
        session = restored(hub, one.state, into, left_out)
        session.epoch = session.taken = one.epoch
        note_received(hub, one.state.client_id)
        if one.ends:
            ends.append(session)
            continue
        there = held_places(one.state) if one.state.cut else set()
        coming.append(Coming(session, one.state.positions, there))
    catch_up = CatchUp(hub, index, coming, done, at_least)
    catch_up.begin(now_ms)
    for one in arriving:
        session = hub.sessions[one.state.client_id]
        if one.unclean:
            hub.session_table.resettle(session, now_ms)
        else:
            session.outbound.leave()
            hub.session_table.schedule(session)
    for session in ends:
        if hub.sessions.get(session.client_id) is session:
            hub.session_table.end(session, now_ms)
    return left_out


def saved(hub: Hub, client_id: str, number: int) -> Saved | None:
    """What its home is to keep of a session as it is now; None: this node does not own it."""
    session = hub.sessions.get(client_id)
    if session is not None:
        state = session_bytes(session, hub.positions_of(session)) if session.durable else None
        urgent = session.will is not None
        return Saved(client_id, session.epoch, number, state, alive=True, urgent=urgent)
    epoch = (hub.ended or {}).get(client_id)
    if epoch is None:
        return None
    return Saved(client_id, epoch, number, None, alive=False, urgent=False)


class OwnedSessions:
    """The sessions of a hub by the partition of their homes."""

    def __init__(self, hub: Hub, partition_of: Callable[[str], int]) -> None:
        self._hub = hub
        self._partition_of = partition_of
        self._by_partition: dict[int, dict[str, None]] = {}
        for client_id in hub.sessions:
            self._add(client_id)
        for topic_filter in hub.exclusive.held:
            self._add(name_of(topic_filter))
        hub.exclusive.on_held, hub.exclusive.on_freed = self._add, self._remove
        hub.session_table.on_added, hub.session_table.on_gone = self._add, self._remove

    def _add(self, client_id: str) -> None:
        self._by_partition.setdefault(self._partition_of(client_id), {})[client_id] = None

    def _remove(self, client_id: str) -> None:
        self._by_partition.get(self._partition_of(client_id), {}).pop(client_id, None)

    def pages(self, partition: int) -> int:
        """How many pages what is in a partition takes now."""
        return 1 + len(self._by_partition.get(partition, ())) // PAGE_ROWS

    def page(self, partition: int, page: int, pages: int) -> list[Owned]:
        """One page of them: which one a session is on does not depend on others."""
        found = self._by_partition.get(partition, ())
        some = (self._owned(one) for one in found if _page(one, pages) == page)
        return [one for one in some if one is not None]

    def _owned(self, name: str) -> Owned | None:
        held = self._hub.exclusive.named(name)
        if held is not None:
            return Owned(name, held.epoch, (USER_KIND, held.session.client_id), urgent=False)
        one = self._hub.sessions.get(name)
        if one is None:
            return None
        return Owned(name, one.epoch, owner_of(one.principal), one.will is not None)


def _page(client_id: str, pages: int) -> int:
    return zlib.crc32(client_id.encode()) % pages


def left_behind(hub: Hub, known: Iterable[Known], now_ms: int) -> int:
    """What homes made of the sessions that this node said it owns; returns how many it lost."""
    lost = 0
    for one in known:
        held = hub.exclusive.named(one.client_id)
        if held is not None and held.epoch == one.told and not one.epoch:
            held.epoch = 0  # it is claimed again, and lost if another client has it
        session = hub.sessions.get(one.client_id)
        if session is None:
            continue
        if not one.told and 0 < session.epoch < one.epoch:
            # Two homes have heard of it, the later one before this node heard of the first.
            session.epoch = one.epoch
        if session.epoch != one.told:  # it was claimed again since
            continue
        if not one.epoch:
            lose(hub, session, now_ms)
            lost += 1
        elif not session.epoch:
            session.epoch = one.epoch
            if hub.ledger is not None:
                hub.ledger.schedule_write(one.client_id)
    return lost
