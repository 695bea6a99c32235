"""Leases and client sessions in the catalog. Pure: their time is counted by the leader."""

from __future__ import annotations

import itertools
from typing import Any, Final

from meta_service.api.errors import AlreadyExists, NotFound, Overloaded
from meta_service.catalog.control_commands import ExpireSessions, GrantLease, RevokeLease
from meta_service.catalog.draft import Draft
from meta_service.catalog.tables import LEASE_KEYS, LEASES, RESULTS, SESSIONS, pack, unpack

LEASE_KEYS_MAX: Final = 1024
"""Keys of one lease, so that its end does not take long."""


def lease_key(lease_id: int) -> bytes:
    return LEASES + lease_id.to_bytes(8, "big")


def _attachment(lease_id: int, key: bytes) -> bytes:
    return LEASE_KEYS + lease_id.to_bytes(8, "big") + key


def grant(draft: Draft, command: GrantLease) -> Any:
    """The time it lives without being kept alive (ms)."""
    key = lease_key(command.lease_id)
    if draft.get(key) is not None:
        raise AlreadyExists(f"lease {command.lease_id} exists already")
    draft.set(key, pack([command.ttl_ms, 0]))
    return command.ttl_ms


def revoke(draft: Draft, command: RevokeLease) -> Any:
    """Number of keys that went with it."""
    if draft.get(lease_key(command.lease_id)) is None:
        raise NotFound(f"lease {command.lease_id} does not exist")
    prefix = _attachment(command.lease_id, b"")
    keys = [attached[len(prefix) :] for attached, _ in draft.scan(prefix)]
    for key in keys:
        draft.delete_row(key)
        draft.set(prefix + key, None)
    draft.set(lease_key(command.lease_id), None)
    return len(keys)


def attach(draft: Draft, key: bytes, lease_id: int) -> None:
    """The key belongs to this lease from now on, or to none (0). Raises NotFound, Overloaded."""
    row = draft.row(key)
    before = row.lease_id if row else 0
    if before == lease_id:
        return
    if before:
        draft.set(_attachment(before, key), None)
        _count(draft, before, -1)
    if lease_id:
        draft.set(_attachment(lease_id, key), b"")
        _count(draft, lease_id, 1)


def _count(draft: Draft, lease_id: int, change: int) -> None:
    data = draft.get(lease_key(lease_id))
    if data is None:
        raise NotFound(f"lease {lease_id} does not exist")
    ttl_ms, count = unpack(data)
    if count + change > LEASE_KEYS_MAX:
        raise Overloaded(f"lease {lease_id} has {LEASE_KEYS_MAX} keys already")
    draft.set(lease_key(lease_id), pack([ttl_ms, count + change]))


def expire_sessions(draft: Draft, command: ExpireSessions) -> Any:
    """Number of sessions forgotten."""
    idle = (
        key[len(SESSIONS) :]
        for key, data in draft.scan(SESSIONS)
        if unpack(data)[1] + command.idle_ms < draft.state.uptime_ms
    )
    expired = list(itertools.islice(idle, command.count))
    for client_id in expired:
        for key, _ in list(draft.scan(RESULTS + client_id)):
            draft.set(key, None)
        draft.set(SESSIONS + client_id, None)
    return len(expired)
