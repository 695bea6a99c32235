"""Authentication by user and password: in one step or by SCRAM, against any store of users."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from lakemq.broker_core.api.errors import InvalidRequest, NotAuthenticated
from lakemq.broker_core.api.limits.connection_limits import peer_of
from lakemq.broker_core.api.ports import Credentials, Exchange
from lakemq.broker_core.api.types import Accepted, Challenge, Principal
from lakemq.broker_core.security.authn.attempts import Attempts
from lakemq.broker_core.security.authn.passwords import PasswordChecker
from lakemq.broker_core.security.authn.scram import (
    HASHES,
    ClientFirst,
    ScramKeys,
    made_up_keys,
    read_client_first,
    server_final,
    server_first,
)
from lakemq.broker_core.security.authn.users import UserRecord, read_users
from lakemq.broker_core.security.watched_file import watched_file

WRONG: Final = "wrong user or password"
"""One message for all failures, so that user names can't be enumerated."""


class Users(Protocol):
    """A store of users."""

    def find(self, name: str) -> UserRecord | None:
        """The user of this name; None: this store has none."""

    def any_known(self) -> bool:
        """Whether there is any user: while there are none, user names are ignored."""

    def withdrawn(self, principal: Principal) -> bool | None:
        """Whether a principal of this store was removed or disabled, or has another password now;
        None: it is not of this store."""


_FILE: Final = {"kept_by": "password_file"}
"""Attribute of the principals of `FileUsers`."""


class FileUsers:
    """Users of a password file."""

    def __init__(self, path: str) -> None:
        self._file = watched_file(path, _read)
        self._seen = self._file.current()
        self._credentials: dict[str, tuple[UserRecord, str]] = {}

    def find(self, name: str) -> UserRecord | None:
        """Reads a changed file again before a name counts as unknown: a user just added is not a
        failed login."""
        record = self._file.current().get(name)
        if record is None and self._file.refresh():
            record = self._file.current().get(name)
        return record

    def any_known(self) -> bool:
        """See `Users`; a password file always counts."""
        return True

    def withdrawn(self, principal: Principal) -> bool | None:
        """See `Users`."""
        if principal.attributes.get("kept_by") != _FILE["kept_by"]:
            return None
        record = self._file.current().get(principal.name)
        if record is None:
            return True
        return bool(principal.credential) and self._credential(record) != principal.credential

    def _credential(self, record: UserRecord) -> str:
        known = self._credentials.get(record.name)
        if known is None or known[0] is not record:
            known = self._credentials[record.name] = (record, record.credential())
        return known[1]

    def changed(self) -> bool:
        """Whether the file was read again since the last call."""
        before, self._seen = self._seen, self._file.current()
        return self._seen is not before


def _read(data: bytes) -> dict[str, UserRecord]:
    try:
        users = read_users(data.decode())
        return {name: replace(user, attributes=_FILE) for name, user in users.items()}
    except InvalidRequest as error:
        raise InvalidRequest(f"password file, {error}") from None


class PasswordAuthenticator:
    """Checks user name and password in one step."""

    needs_credentials = True

    def __init__(self, users: Users, checker: PasswordChecker) -> None:
        self._users = users
        self._checker = checker

    def handles(self, credentials: Credentials) -> bool:
        """Whether there is a user name, and users that it could be of."""
        return credentials.username is not None and self._users.any_known()

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """None: the user is unknown here. Raises NotAuthenticated, Unavailable."""
        name, password = credentials.username, credentials.password
        record = None if name is None else self._users.find(name)
        if record is None:
            return None
        if password is None:
            raise NotAuthenticated(WRONG)
        right = await self._checker.check(record, password, peer_of(credentials.peer_host))
        if not right or record.disabled:
            raise NotAuthenticated(WRONG)
        return record.principal()


class ScramMechanism:
    """SCRAM-SHA-256 or SCRAM-SHA-512 over all stores of users (RFC 5802, RFC 7677)."""

    def __init__(
        self,
        name: str,
        users: Sequence[Users],
        attempts: Attempts,
        now_ms: Callable[[], int],
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        assert name in HASHES
        self.name = name
        self.attempts = attempts
        self.now_ms = now_ms
        self.nonce = nonce
        self._users = tuple(users)
        self.secret = secrets.token_bytes(32)
        """Key from which salts of unknown users are derived: the same on all nodes and at all
        times, as the salts of real users are, so that a login does not reveal which users exist."""

    def begin(self, credentials: Credentials) -> Exchange:
        """Start one exchange with a client."""
        return _ScramExchange(self, credentials)

    def find(self, name: str) -> UserRecord | None:
        """The user of this name in the first store that has it."""
        for users in self._users:
            record = users.find(name)
            if record is not None:
                return record
        return None

    def keys(self, name: str) -> tuple[UserRecord | None, ScramKeys]:
        """The user and its keys; made-up ones where there are none."""
        record = self.find(name)
        keys = record.keys_for(self.name) if record is not None else None
        # The exchange goes on to its end with keys that no proof fits: it must look like that of a
        # real user.
        if record is None or keys is None or record.disabled:
            return None, made_up_keys(self.name, name, self.secret)
        return record, keys


class _ScramExchange:
    """Client first, server first, client final, server final."""

    def __init__(self, mechanism: ScramMechanism, credentials: Credentials) -> None:
        self._mechanism = mechanism
        self._host = credentials.peer_host
        self._first: ClientFirst | None = None
        self._said = ""
        self._record: UserRecord | None = None
        self._keys: ScramKeys
        self._over = False

    async def step(self, data: bytes) -> Challenge | Accepted:
        if self._over:
            raise NotAuthenticated("SCRAM: the exchange is over")
        try:
            if self._first is None:
                return self._begin(data)
            self._over = True
            return self._finish(self._first, data)
        except NotAuthenticated:
            self._over = True
            raise

    def _begin(self, data: bytes) -> Challenge:
        if not data:
            return Challenge(b"")  # no initial response: it comes next
        first = read_client_first(data)
        self._refuse_the_hasty(first)
        self._record, self._keys = self._mechanism.keys(first.name)
        self._said = server_first(first, self._keys, self._mechanism.nonce())
        self._first = first
        return Challenge(self._said.encode())

    def _finish(self, first: ClientFirst, data: bytes) -> Accepted:
        mechanism = self._mechanism
        now_ms = mechanism.now_ms()
        answer = server_final(first, self._said, self._keys, data)
        if answer is None or self._record is None:
            mechanism.attempts.failed(self._host, first.name, now_ms)
            raise NotAuthenticated(WRONG)
        self._refuse_the_hasty(first)
        mechanism.attempts.succeeded(self._host, first.name)
        return Accepted(self._record.principal(), answer)

    def _refuse_the_hasty(self, first: ClientFirst) -> None:
        mechanism = self._mechanism
        wait_ms = mechanism.attempts.wait_ms(self._host, first.name, mechanism.now_ms())
        if wait_ms:
            raise NotAuthenticated(f"too many failed logins; try again in {-(-wait_ms // 1000)} s")
