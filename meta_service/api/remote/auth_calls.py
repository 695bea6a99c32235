"""Calls on users, ACL rules and quotas."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, cast

from lakemq.meta_service.api.auth import (
    AclRule,
    AuthChange,
    AuthCopy,
    AuthSnapshot,
    Entry,
    EntryKind,
    Quota,
    User,
)
from lakemq.meta_service.api.errors import Compacted, InvalidArgument
from lakemq.meta_service.api.messages import message_of, value_of
from lakemq.meta_service.api.remote.calls import Calls
from lakemq.meta_service.proto import auth_pb2 as pb

_KINDS: Final[dict[EntryKind, tuple[type[Entry], Any]]] = {
    "user": (User, pb.User),
    "rule": (AclRule, pb.AclRule),
    "quota": (Quota, pb.Quota),
}


def entry_message(entry: Entry) -> pb.AuthEntry:
    """An entry as a message of auth.proto."""
    message = pb.AuthEntry(revision=entry.revision)
    for kind, (value_type, message_type) in _KINDS.items():
        if isinstance(entry, value_type):
            getattr(message, kind).CopyFrom(message_of(message_type, entry))
    return message


def entry_of(message: pb.AuthEntry) -> Entry:
    """Raises InvalidArgument when it holds none."""
    kind = message.WhichOneof("entry")
    if kind is None:
        raise InvalidArgument("entry: must be a user, a rule or a quota")
    return value_of(_KINDS[kind][0], getattr(message, kind), revision=message.revision)


class AuthCalls(Calls):
    """Implements `AuthPort`."""

    async def put_user(self, user: User, *, expected_revision: int | None = None) -> int:
        """Create or replace a user; its new revision. Raises CompareFailed, InvalidArgument."""
        return await self._put_entry(user, expected_revision)

    async def put_rule(self, rule: AclRule, *, expected_revision: int | None = None) -> int:
        """Create or replace an ACL rule; its new revision. Raises CompareFailed,
        InvalidArgument."""
        return await self._put_entry(rule, expected_revision)

    async def put_quota(self, quota: Quota, *, expected_revision: int | None = None) -> int:
        """Create or replace a quota; its new revision. Raises CompareFailed, InvalidArgument."""
        return await self._put_entry(quota, expected_revision)

    async def _put_entry(self, entry: Entry, expected_revision: int | None) -> int:
        request = pb.PutAuthRequest(entry=entry_message(entry), expected_revision=expected_revision)
        return int((await self._write(lambda t: t.auth.Put, request)).revision)

    async def delete_user(self, name: str, *, expected_revision: int | None = None) -> int:
        """Delete a user; the new revision. Raises NotFound, CompareFailed."""
        return await self._delete_entry("user", name, expected_revision)

    async def delete_rule(self, rule_id: str, *, expected_revision: int | None = None) -> int:
        """Delete an ACL rule; the new revision. Raises NotFound, CompareFailed."""
        return await self._delete_entry("rule", rule_id, expected_revision)

    async def delete_quota(self, principal: str, *, expected_revision: int | None = None) -> int:
        """Delete a quota; the new revision. Raises NotFound, CompareFailed."""
        return await self._delete_entry("quota", principal, expected_revision)

    async def _delete_entry(self, kind: EntryKind, name: str, expected_revision: int | None) -> int:
        request = pb.DeleteAuthRequest(kind=kind, name=name, expected_revision=expected_revision)
        return int((await self._write(lambda t: t.auth.Delete, request)).revision)

    async def user(self, name: str) -> User | None:
        """The user of that name; None: there is none."""
        request = pb.ListAuthRequest(kind="user", name=name)
        response = await self._call(lambda t: t.auth.List, request)
        return cast(User, entry_of(response.entries[0])) if response.entries else None

    async def users(self) -> Sequence[User]:
        """All users by name."""
        return [e for e in (await self._entries("user"))[1] if isinstance(e, User)]

    async def rules(self) -> Sequence[AclRule]:
        """All ACL rules by id."""
        return [e for e in (await self._entries("rule"))[1] if isinstance(e, AclRule)]

    async def quotas(self) -> Sequence[Quota]:
        """All quotas by principal."""
        return [e for e in (await self._entries("quota"))[1] if isinstance(e, Quota)]

    async def auth(self) -> AuthSnapshot:
        """Large ones take several calls: entries may then be newer than the revision."""
        revision, entries = await self._entries("")
        return AuthSnapshot(
            revision,
            tuple(e for e in entries if isinstance(e, User)),
            tuple(e for e in entries if isinstance(e, AclRule)),
            tuple(e for e in entries if isinstance(e, Quota)),
        )

    async def _entries(self, kind: str) -> tuple[int, list[Entry]]:
        found: list[Entry] = []
        revision, after, more = 0, b"", True
        while more:
            request = pb.ListAuthRequest(kind=kind, after=after)
            response = await self._call(lambda t: t.auth.List, request)
            found.extend(map(entry_of, response.entries))
            # That of the first page: a watch from there repeats what later pages already had, and
            # misses nothing.
            revision = revision or response.revision
            after, more = response.next, bool(response.next)
        return revision, found

    def watch_auth(self, start_revision: int) -> AsyncIterator[AuthChange]:
        """Changes from a revision on, no gap, no repeat. Raises Compacted."""
        return self._watch_auth(start_revision)

    async def _watch_auth(self, start_revision: int) -> AsyncIterator[AuthChange]:
        def request(revision: int) -> pb.WatchAuthRequest:
            return pb.WatchAuthRequest(start_revision=revision)

        changes: Any = self._stream(lambda t: t.auth.Watch, request, start_revision)
        async with contextlib.aclosing(changes):
            async for change in changes:
                if change.kind in _KINDS:
                    entry = entry_of(change.entry) if change.HasField("entry") else None
                    yield AuthChange(change.revision, change.kind, change.name, entry)

    async def follow_auth(self, copy: AuthCopy) -> AsyncIterator[AuthChange | None]:
        """Keep a copy up to date; None when it was loaded whole, else the change taken into it."""
        while True:
            copy.load(await self.auth())
            yield None
            changes: Any = self.watch_auth(copy.revision + 1)
            try:
                async with contextlib.aclosing(changes):
                    async for change in changes:
                        copy.update(change)
                        yield change
            except Compacted:  # too far behind for the history: load the copy again
                continue
