"""Commands of the KV space and of the cluster as a whole."""

from __future__ import annotations

import itertools
from typing import Any

from lakemq.meta_service.api.errors import AlreadyExists, InvalidArgument
from lakemq.meta_service.catalog.commands import (
    AllocateIds,
    OpenSession,
    Operation,
    SetClusterId,
    SetFeatureLevel,
    Tick,
    Txn,
)
from lakemq.meta_service.catalog.control_commands import ExpireSessions
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.tables import (
    CLUSTER_KEY,
    ID_BLOCKS,
    RESULTS,
    SESSIONS,
    Session,
    decode_number,
    encode_number,
    pack,
    unpack,
)


def transact(draft: Draft, command: Txn) -> Any:
    """[compares held, keys deleted that were there]."""
    # All compares before the first write: they see the state before the transaction.
    held = all(_mod_revision(draft, key) == revision for key, revision in command.compares)
    return [held, _operate(draft, command.then if held else command.otherwise)]


def _mod_revision(draft: Draft, key: bytes) -> int:
    row = draft.row(key)
    return row.mod_revision if row else 0


def _operate(draft: Draft, operations: tuple[Operation, ...]) -> int:
    deleted = 0
    for key, value, _ in operations:
        if value is None:
            deleted += draft.delete_row(key)
        else:
            draft.put_row(key, value)
    return deleted


def set_cluster_id(draft: Draft, command: SetClusterId) -> Any:
    """The cluster id: the one that is there, or this one."""
    existing = draft.get(CLUSTER_KEY)
    if existing is None:
        draft.set(CLUSTER_KEY, command.cluster_id.encode())
        return command.cluster_id
    return existing.decode()


def set_feature_level(draft: Draft, command: SetFeatureLevel) -> Any:
    """The level reached. It only rises; `apply` puts it into the state."""
    if command.feature_level < draft.state.feature_level:
        raise InvalidArgument(
            f"feature_level: is {draft.state.feature_level} already and cannot be lowered to "
            f"{command.feature_level}"
        )
    return command.feature_level


def tick(draft: Draft, command: Tick) -> Any:
    """The catalog's time (ms). It never goes back."""
    return max(draft.state.clock_ms, command.now_ms)


def open_session(draft: Draft, command: OpenSession) -> Any:
    """None. Raises AlreadyExists."""
    key = SESSIONS + command.client_id
    if draft.get(key) is not None:
        raise AlreadyExists("the session is open already")
    draft.set(key, pack(Session(0, draft.state.uptime_ms)))
    return None


def allocate_ids(draft: Draft, command: AllocateIds) -> Any:
    """First id of the block."""
    key = ID_BLOCKS + command.id_kind.encode()
    first = decode_number(draft.get(key))
    draft.set(key, encode_number(first + command.count))
    return first


def expire_sessions(draft: Draft, command: ExpireSessions) -> Any:
    """Number of sessions that expired."""
    idle = (
        key[len(SESSIONS) :]
        for key, data in draft.scan(SESSIONS)
        if unpack(data)[1] + command.idle_ms < draft.state.uptime_ms
    )
    # Listed before anything is deleted: the scan reads the draft that is changed below.
    expired = list(itertools.islice(idle, command.count))
    for client_id in expired:
        for key, _ in list(draft.scan(RESULTS + client_id)):
            draft.set(key, None)
        draft.set(SESSIONS + client_id, None)
    return len(expired)
