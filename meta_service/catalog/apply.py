"""Apply one command of the log to the catalog. Pure; the same on every member.

Never raises for what a command holds: a command that cannot be decoded, is not allowed or trips a
bug answers an error and changes nothing but the applied index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lakemq.meta_service.api.errors import (
    InvalidArgument,
    MetaError,
    Overloaded,
    SessionExpired,
    UnsupportedCommand,
)
from lakemq.meta_service.catalog import entries, kv, moves, schemas, topics
from lakemq.meta_service.catalog.auth import KINDS
from lakemq.meta_service.catalog.command_codec import (
    FEATURE_LEVEL,
    Command,
    Header,
    decode_command,
)
from lakemq.meta_service.catalog.commands import (
    AllocateIds,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    OpenSession,
    PlaceTopic,
    RegisterNode,
    RegisterStorage,
    SetClusterId,
    SetFeatureLevel,
    Tick,
    Txn,
)
from lakemq.meta_service.catalog.control_commands import (
    ChangeInSync,
    ElectLeaders,
    ExpireSessions,
    RemoveNode,
    RetireNode,
    SetNodeState,
)
from lakemq.meta_service.catalog.draft import Draft, View
from lakemq.meta_service.catalog.pages import changes, registration, whole_topics
from lakemq.meta_service.catalog.pages.commands import (
    AlterReplicatedTopic,
    ChangeInSyncMany,
    CreateReplicatedTopic,
    ElectUnclean,
    FinishMovesInPages,
    ForgetLost,
    LeaveNode,
    PageTopics,
    RegisterBroker,
    Resign,
    SettlePages,
)
from lakemq.meta_service.catalog.results import Result, decode_result, encode_result
from lakemq.meta_service.catalog.tables import (
    GROUP_KEY,
    SESSIONS,
    Row,
    Session,
    State,
    encode_events,
    event_key,
    pack,
    result_key,
    unpack,
)

HISTORY_REVISIONS_MAX: Final = 100_000
"""How many revisions a watch can go back."""
HISTORY_MAX_BYTES: Final = 64 * 1024 * 1024
UNACKNOWLEDGED_MAX: Final = 4096
"""Results kept for one client."""
_TRIM_MAX: Final = 16
"""History entries dropped by one command, so that none takes long."""
TICK_MAX_MS: Final = 120_000
"""Time between two ticks that counts as uptime."""
_MINUTE_MS: Final = 60_000


class MemberTooOld(Exception):
    """The cluster has reached a feature level that this code does not know: it must stop."""


class Applied(NamedTuple):
    """What a command did. `writes` go to the store in one batch, and `state` with them."""

    state: State
    writes: dict[bytes, bytes | None]
    rows: list[tuple[bytes, Row | None]]
    """Keys of the KV space that changed, with the rows as they are now; None: deleted."""
    result: Result


_HANDLERS: Final[dict[type[Command], Callable[[Draft, Any], Any]]] = {
    Txn: kv.transact,
    SetClusterId: kv.set_cluster_id,
    SetFeatureLevel: kv.set_feature_level,
    Tick: kv.tick,
    OpenSession: kv.open_session,
    AllocateIds: kv.allocate_ids,
    **dict.fromkeys((RegisterNode, RegisterStorage, RegisterBroker), registration.register),
    **dict.fromkeys((CreateTopic, PlaceTopic, CreateReplicatedTopic), topics.create_topic),
    **dict.fromkeys((AlterTopic, GrowTopic, AlterReplicatedTopic), topics.alter_topic),
    DeleteTopic: topics.delete_topic,
    ExpireSessions: kv.expire_sessions,
    SetNodeState: registration.set_node_state,
    RemoveNode: registration.remove_node,
    RetireNode: registration.retire_node,
    LeaveNode: registration.leave_node,
    ForgetLost: registration.forget_lost,
    PageTopics: topics.page_topics,
    SettlePages: changes.settle_pages,
    ChangeInSyncMany: changes.change_in_sync_many,
    Resign: changes.resign,
    ElectUnclean: changes.elect_unclean,
    FinishMovesInPages: changes.finish_moves_in_pages,
    moves.StartMoves: moves.start_moves,
    moves.FinishMoves: moves.finish_moves,
    moves.SetRebalance: moves.set_rebalance,
    ElectLeaders: whole_topics.elect_leaders,
    ChangeInSync: whole_topics.change_in_sync,
    schemas.RegisterSchema: schemas.register_schema,
    schemas.DeleteSchema: schemas.delete_schema,
    schemas.SetCompatibility: schemas.set_compatibility,
    **{kind.put: entries.put_entry for kind in KINDS.values()},
    **{kind.delete: entries.delete_entry for kind in KINDS.values()},
}


def apply(view: View, state: State, index: int, term: int, data: bytes) -> Applied:
    """Apply the command at a log index. Raises only MemberTooOld."""
    # Index and term move on whatever the command does: a refused one must not be applied again at a
    # restart.
    state = State(index, term, *state[2:])  # `_replace` takes longer, and this is done for all
    session = None
    try:
        header, command = decode_command(data)
        if header.client_id and not isinstance(command, OpenSession):
            session = _session(view, header.client_id)
            # The log may hold a command more than once, as clients retry what has no answer: the
            # second copy answers what the first one did (Raft §8).
            stored = _stored_result(view, header, session)
            if stored is not None:
                return _finish(Draft(view, state), state, stored)
    except MetaError as error:
        return _finish(Draft(view, state), state, Result(error.code, state.revision, str(error)))
    draft, result = _run(view, state, command)
    if session is not None:
        _remember(draft, header, session, result)
    if not result.code and isinstance(command, SetFeatureLevel):
        state = state._replace(feature_level=command.feature_level)
    if not result.code and isinstance(command, Tick):
        state = _advance_clock(state, result.payload)
    return _finish(draft, state, result)


def keep_group(state: State, index: int, term: int, group: bytes) -> Applied:
    """Keep a committed configuration of the Raft group beside the catalog."""
    state = state._replace(applied_index=index, applied_term=term)
    writes: dict[bytes, bytes | None] = {GROUP_KEY: group}
    state = state._replace(digest=_chain(state, writes))
    return Applied(state, writes, [], Result("", state.revision, None))


def _chain(state: State, writes: dict[bytes, bytes | None]) -> bytes:
    packed = pack([state.applied_index, state.applied_term, list(writes.items())])
    return hashlib.blake2b(state.digest + packed, digest_size=16).digest()


def _advance_clock(state: State, clock_ms: int) -> State:
    passed_ms = min(clock_ms - state.clock_ms, TICK_MAX_MS) if state.clock_ms else 0
    return state._replace(clock_ms=clock_ms, uptime_ms=state.uptime_ms + passed_ms)


def _run(view: View, state: State, command: Command) -> tuple[Draft, Result]:
    draft = Draft(view, state)
    try:
        if command.level > state.feature_level:
            raise UnsupportedCommand(
                f"command {command.kind!r} needs feature level {command.level}, the cluster is at "
                f"{state.feature_level}"
            )
        payload = _HANDLERS[type(command)](draft, command)
    except MetaError as error:
        # A fresh draft: what the handler wrote before it refused is dropped.
        return Draft(view, state), Result(error.code, state.revision, str(error))
    # Of this machine alone: answered as an error it would part this member's state from the
    # others'.
    except MemoryError:
        raise
    except Exception as error:  # a bug: the same on every member, so they stay alike
        message = f"{type(error).__name__} in command {command.kind!r}: {error}"
        return Draft(view, state), Result(MetaError.code, state.revision, message)
    return draft, Result("", draft.revision if draft.events else state.revision, payload)


def _finish(draft: Draft, state: State, result: Result) -> Applied:
    """Number the events, trim the history, chain the digest."""
    # Checked here and not where the level rises: the level may also come with a snapshot.
    if state.feature_level > FEATURE_LEVEL:
        raise MemberTooOld(
            f"the cluster is at feature level {state.feature_level}, this member knows "
            f"{FEATURE_LEVEL}"
        )
    history = state[2:5]
    if draft.events:
        events = encode_events(draft.events)
        draft.set(event_key(draft.revision), events)
        history = _trim_history(draft, draft.revision, state.event_bytes + len(events))
    # Not by `_replace`, twice: this is done for all commands.
    state = State(*state[:2], *history, *state[5:8], _chain(state, draft.writes))
    return Applied(state, draft.writes, draft.rows, result)


def _trim_history(draft: Draft, revision: int, size: int) -> tuple[int, int, int]:
    """(revision, compacted revision, size of the events kept) once history is short enough;
    `size`: of all events kept up to `revision` (bytes)."""
    oldest = draft.state.compact_revision
    for _ in range(_TRIM_MAX):
        if revision - oldest <= 1 or not (
            revision - oldest > HISTORY_REVISIONS_MAX or size > HISTORY_MAX_BYTES
        ):
            break
        oldest += 1
        size -= len(draft.get(event_key(oldest)) or b"")
        draft.set(event_key(oldest), None)
    return revision, oldest, size


def _session(view: View, client_id: bytes) -> Session:
    data = view.get(SESSIONS + client_id)
    if data is None:
        raise SessionExpired("the client's session is unknown or has ended")
    return Session(*unpack(data))


def _stored_result(view: View, header: Header, session: Session) -> Result | None:
    """What the same command answered before. Raises if the client cannot be served."""
    if header.sequence <= session.low:
        raise InvalidArgument(f"sequence {header.sequence}: its result was received already")
    if header.sequence > session.low + UNACKNOWLEDGED_MAX:
        raise Overloaded(f"the client has more than {UNACKNOWLEDGED_MAX} commands unanswered")
    data = view.get(result_key(header.client_id, header.sequence))
    return decode_result(data) if data is not None else None


def _remember(draft: Draft, header: Header, session: Session, result: Result) -> None:
    """Keep the result for a retry, drop those that the client has."""
    draft.set(result_key(header.client_id, header.sequence), encode_result(result))
    # Never beyond the command's own sequence, whatever the client claims: its result must outlive
    # the answer.
    low = min(max(session.low, header.acknowledged), header.sequence - 1)
    for sequence in range(session.low + 1, low + 1):
        draft.set(result_key(header.client_id, sequence), None)
    # To the minute, so that the session's row is written once a minute and not with each command.
    used_ms = draft.state.uptime_ms - draft.state.uptime_ms % _MINUTE_MS
    if low != session.low or used_ms != session.used_ms:
        draft.set(SESSIONS + header.client_id, pack(Session(low, used_ms)))
