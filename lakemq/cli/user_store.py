"""Where `lakemq user` keeps users: a password file, or the MetaService."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from lakemq.broker_core.security.authn.users import UserRecord
from lakemq.broker_core.security.kept_forms import record_of, user_of
from lakemq.cli.meta_options import AskMeta
from lakemq.cli.user_file import put_user, remove_user, users_of


class UserStore(Protocol):
    def users(self) -> Sequence[UserRecord]: ...

    def find(self, name: str) -> UserRecord | None: ...

    def put(self, user: UserRecord) -> None: ...

    def remove(self, name: str) -> None: ...


class FileStore:
    """A password file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def users(self) -> Sequence[UserRecord]:
        return list(users_of(self._path).values())

    def find(self, name: str) -> UserRecord | None:
        return users_of(self._path).get(name)

    def put(self, user: UserRecord) -> None:
        put_user(self._path, user)

    def remove(self, name: str) -> None:
        remove_user(self._path, name)


class MetaStore:
    """The MetaService."""

    def __init__(self, ask: AskMeta) -> None:
        self._ask = ask

    def users(self) -> Sequence[UserRecord]:
        return [record_of(user) for user in self._ask(lambda meta: meta.users())]

    def find(self, name: str) -> UserRecord | None:
        user = self._ask(lambda meta: meta.user(name))
        return None if user is None else record_of(user)

    def put(self, user: UserRecord) -> None:
        self._ask(lambda meta: meta.put_user(user_of(user)))

    def remove(self, name: str) -> None:
        self._ask(lambda meta: meta.delete_user(name))
