"""MQTT sessions and shared subscriptions in the catalog. Pure: time comes in commands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from meta_service.api.errors import CompareFailed, InvalidArgument, NotFound, Overloaded
from meta_service.api.mqtt import NEVER, MqttSession, SharedGroup
from meta_service.catalog.command_codec import (
    Command,
    check_blob,
    check_integer,
    check_list,
    check_name,
    command,
)
from meta_service.catalog.draft import Draft
from meta_service.catalog.entries import check_flag, check_label
from meta_service.catalog.tables import pack, unpack

MQTT_PREFIX: Final = b"\x00mqtt/"
SESSION_PREFIX: Final = MQTT_PREFIX + b"session/"
SHARED_PREFIX: Final = MQTT_PREFIX + b"shared/"
LEVEL: Final = 2
CLIENT_ID_CHARACTERS_MAX: Final = 1024
FILTER_CHARACTERS_MAX: Final = 1024
STATE_BYTES_MAX: Final = 64 * 1024
MEMBERS_MAX: Final = 4096
EXPIRED_MAX: Final = 1000
"""Sessions in one command, so that none takes long."""


def _check_client(value: object) -> None:
    check_label(value, "client_id", CLIENT_ID_CHARACTERS_MAX)


@command("mqtt.claim")
@dataclass(frozen=True, slots=True)
class ClaimSession(Command):
    level: ClassVar[int] = LEVEL

    client_id: str
    node_id: str
    clean_start: bool
    expiry_s: int
    now_ms: int

    def check(self) -> None:
        _check_client(self.client_id)
        check_name(self.node_id, "node_id")
        check_flag(self.clean_start, "clean_start")
        check_integer(self.expiry_s, "expiry_s", 0, NEVER)
        check_integer(self.now_ms, "now_ms", 0, 2**53)


@command("mqtt.save")
@dataclass(frozen=True, slots=True)
class SaveSession(Command):
    level: ClassVar[int] = LEVEL

    client_id: str
    epoch: int
    state: bytes

    def check(self) -> None:
        _check_client(self.client_id)
        check_integer(self.epoch, "epoch", 0, 2**63 - 1)
        check_blob(self.state, "state", STATE_BYTES_MAX)


@command("mqtt.release")
@dataclass(frozen=True, slots=True)
class ReleaseSession(Command):
    level: ClassVar[int] = LEVEL

    client_id: str
    epoch: int
    expiry_s: int | None
    now_ms: int

    def check(self) -> None:
        _check_client(self.client_id)
        check_integer(self.epoch, "epoch", 0, 2**63 - 1)
        if self.expiry_s is not None:
            check_integer(self.expiry_s, "expiry_s", 0, NEVER)
        check_integer(self.now_ms, "now_ms", 0, 2**53)


@command("mqtt.end")
@dataclass(frozen=True, slots=True)
class EndSession(Command):
    level: ClassVar[int] = LEVEL

    client_id: str
    epoch: int | None

    def check(self) -> None:
        _check_client(self.client_id)
        if self.epoch is not None:
            check_integer(self.epoch, "epoch", 0, 2**63 - 1)


@command("mqtt.expire")
@dataclass(frozen=True, slots=True)
class ExpireMqttSessions(Command):
    """End those of these sessions whose time is over."""

    level: ClassVar[int] = LEVEL

    client_ids: tuple[str, ...]
    now_ms: int

    def check(self) -> None:
        check_list(self.client_ids, "client_ids")
        if len(self.client_ids) > EXPIRED_MAX:
            raise InvalidArgument(f"client_ids: at most {EXPIRED_MAX} at once")
        for client_id in self.client_ids:
            _check_client(client_id)
        check_integer(self.now_ms, "now_ms", 0, 2**53)


@command("mqtt.join")
@dataclass(frozen=True, slots=True)
class JoinShared(Command):
    level: ClassVar[int] = LEVEL

    group: str
    topic_filter: str
    client_id: str
    node_id: str

    def check(self) -> None:
        _check_shared(self.group, self.topic_filter)
        _check_client(self.client_id)
        check_name(self.node_id, "node_id")


@command("mqtt.leave")
@dataclass(frozen=True, slots=True)
class LeaveShared(Command):
    level: ClassVar[int] = LEVEL

    group: str
    topic_filter: str
    client_id: str

    def check(self) -> None:
        _check_shared(self.group, self.topic_filter)
        _check_client(self.client_id)


def _check_shared(group: object, topic_filter: object) -> None:
    check_label(group, "group")
    check_label(topic_filter, "topic_filter", FILTER_CHARACTERS_MAX)
    if any(character in str(group) for character in "/+#"):  # [MQTT-4.8.2-1]
        raise InvalidArgument("group: must not contain '/', '+' or '#'")


# ------------------------------------------------------------ rows


def session_key(client_id: str) -> bytes:
    return SESSION_PREFIX + client_id.encode()


def decode_session(key: bytes, value: bytes, revision: int) -> MqttSession:
    """`revision`: the row's `mod_revision`."""
    fields: Any = unpack(value)
    node_id, epoch, connected, expiry_s, ends_ms, state = fields
    client_id = key[len(SESSION_PREFIX) :].decode()
    return MqttSession(client_id, node_id, epoch, connected, expiry_s, ends_ms, state, revision)


def _save(draft: Draft, session: MqttSession) -> None:
    body = [
        session.node_id,
        session.epoch,
        session.connected,
        session.expiry_s,
        session.ends_ms,
        session.state,
    ]
    draft.put_row(session_key(session.client_id), pack(body))


def _find(draft: Draft, client_id: str) -> MqttSession | None:
    key = session_key(client_id)
    row = draft.row(key)
    return decode_session(key, row.value, row.mod_revision) if row else None


def _held(draft: Draft, client_id: str, epoch: int | None) -> MqttSession:
    """Raises NotFound; CompareFailed when it is in another epoch."""
    session = _find(draft, client_id)
    if session is None:
        raise NotFound(f"client {client_id!r} has no session")
    if epoch not in (None, session.epoch):
        raise CompareFailed(
            f"the session of {client_id!r} is served by {session.node_id} in epoch {session.epoch}"
        )
    return session


def is_over(session: MqttSession, now_ms: int) -> bool:
    return not session.connected and bool(session.ends_ms) and session.ends_ms <= now_ms


def shared_key(group: str, topic_filter: str) -> bytes:
    return SHARED_PREFIX + group.encode() + b"/" + topic_filter.encode()


def decode_shared(key: bytes, value: bytes, revision: int) -> SharedGroup:
    fields: Any = unpack(value)
    coordinator, members = fields
    group, _, topic_filter = key[len(SHARED_PREFIX) :].decode().partition("/")
    return SharedGroup(group, topic_filter, revision, coordinator, members)


# ------------------------------------------------------------ handlers


def claim_session(draft: Draft, command: ClaimSession) -> Any:
    """[epoch, previous node or nil, present, state]."""
    old = _find(draft, command.client_id)
    goes_on = old is not None and not command.clean_start and not is_over(old, command.now_ms)
    state = old.state if old is not None and goes_on else b""
    epoch = draft.revision
    new = MqttSession(
        command.client_id, command.node_id, epoch, True, command.expiry_s, 0, state, 0
    )
    _save(draft, new)
    return [epoch, old.node_id if old is not None and old.connected else None, goes_on, state]


def save_session(draft: Draft, command: SaveSession) -> Any:
    _save(draft, replace(_held(draft, command.client_id, command.epoch), state=command.state))
    return None


def release_session(draft: Draft, command: ReleaseSession) -> Any:
    """Whether the session outlives its connection."""
    session = _held(draft, command.client_id, command.epoch)
    expiry_s = session.expiry_s if command.expiry_s is None else command.expiry_s
    if not expiry_s:
        draft.delete_row(session_key(session.client_id))
        return False
    ends_ms = 0 if expiry_s == NEVER else command.now_ms + expiry_s * 1000
    _save(draft, replace(session, connected=False, expiry_s=expiry_s, ends_ms=ends_ms))
    return True


def end_session(draft: Draft, command: EndSession) -> Any:
    session = _held(draft, command.client_id, command.epoch)
    draft.delete_row(session_key(session.client_id))
    return None


def expire_sessions(draft: Draft, command: ExpireMqttSessions) -> Any:
    """Number of sessions that ended."""
    count = 0
    for client_id in command.client_ids:
        session = _find(draft, client_id)
        if session is not None and is_over(session, command.now_ms):
            count += draft.delete_row(session_key(client_id))
    return count


def join_shared(draft: Draft, command: JoinShared) -> Any:
    """The group's row value."""
    key = shared_key(command.group, command.topic_filter)
    row = draft.row(key)
    old = decode_shared(key, row.value, 0) if row else None
    members = dict(old.members if old else ())
    members[command.client_id] = command.node_id
    if len(members) > MEMBERS_MAX:
        raise Overloaded(f"shared subscription {command.group!r} has {MEMBERS_MAX} members already")
    return _save_shared(draft, key, old.coordinator if old else "", members)


def leave_shared(draft: Draft, command: LeaveShared) -> Any:
    """Number of members left."""
    key = shared_key(command.group, command.topic_filter)
    row = draft.row(key)
    old = decode_shared(key, row.value, 0) if row else None
    members = dict(old.members if old else ())
    if members.pop(command.client_id, None) is None:
        raise NotFound(f"client {command.client_id!r} is not in group {command.group!r}")
    if members:
        _save_shared(draft, key, old.coordinator if old else "", members)
    else:
        draft.delete_row(key)
    return len(members)


def _save_shared(draft: Draft, key: bytes, coordinator: str, members: dict[str, str]) -> bytes:
    if coordinator not in members.values():
        coordinator = next(iter(members.values()))
    value = pack([coordinator, list(members.items())])
    draft.put_row(key, value)
    return value
