"""Where `lakemq user` keeps users: a password file, or the MetaService."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from lakemq.broker_core.api.command_line import MetaOptions
from lakemq.broker_core.security.authn.users import UserRecord
from lakemq.broker_core.security.catalog_forms import record_of, user_of
from lakemq.cli.meta_access import ask_meta
from lakemq.cli.users.user_file import put_user, remove_user, users_of


class UserStore(Protocol):
    """Where users are kept: list, find, put (which replaces) and delete them by name."""

    def users(self) -> Sequence[UserRecord]:
        """All users, by name."""

    def find(self, name: str) -> UserRecord | None:
        """None: unknown."""

    def put(self, user: UserRecord) -> None:
        """Create the user, or replace the one of its name."""

    def delete(self, name: str) -> None:
        """Delete the user of that name."""


class FileStore:
    """A password file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def users(self) -> Sequence[UserRecord]:
        """All users of the file; none if it does not exist."""
        return list(users_of(self._path).values())

    def find(self, name: str) -> UserRecord | None:
        """The user of that name, or None."""
        return users_of(self._path).get(name)

    def put(self, user: UserRecord) -> None:
        """Add the user, or replace the one of that name."""
        put_user(self._path, user)

    def delete(self, name: str) -> None:
        """Delete the user; one that does not exist is no error."""
        remove_user(self._path, name)


class MetaStore:
    """The MetaService."""

    def __init__(self, members: MetaOptions) -> None:
        self._members = members

    def users(self) -> Sequence[UserRecord]:
        """All users in the catalog."""
        return [record_of(user) for user in ask_meta(self._members, lambda meta: meta.users())]

    def find(self, name: str) -> UserRecord | None:
        """The user of that name, or None."""
        user = ask_meta(self._members, lambda meta: meta.user(name))
        return None if user is None else record_of(user)

    def put(self, user: UserRecord) -> None:
        """Add the user, or replace the one of that name, on all nodes."""
        ask_meta(self._members, lambda meta: meta.put_user(user_of(user)))

    def delete(self, name: str) -> None:
        """Delete the user on all nodes."""
        ask_meta(self._members, lambda meta: meta.delete_user(name))
