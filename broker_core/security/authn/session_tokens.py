"""Tokens that a node gives to clients that logged in by an exchange: who, until when, and a keyed
hash over it. They hold for this node; its key lies in its data folder.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from lakemq.broker_core.api.errors import NotAuthenticated, StartupError
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.types import Principal
from lakemq.broker_core.security.authn.password_users import Users
from lakemq.broker_core.security.authn.users import UserRecord

PREFIX: Final = "lakemq1."
KEY_BYTES: Final = 32


class SessionTokens:
    """Gives tokens and knows them again: implements the `Authenticator` port."""

    needs_credentials = True

    def __init__(
        self, key: bytes, users: Sequence[Users], lifetime_ms: int, now_ms: Callable[[], int]
    ) -> None:
        self._key = key
        self._users = tuple(users)
        self.lifetime_ms = lifetime_ms
        self._now_ms = now_ms

    def issue(self, principal: Principal) -> tuple[str, int]:
        """A token for the principal, and when it ends (ms since the epoch)."""
        expires_ms = self._now_ms() + self.lifetime_ms
        if principal.expires_ms is not None:
            expires_ms = min(expires_ms, principal.expires_ms)
        said = {
            "name": principal.name,
            "roles": principal.roles,
            "until": expires_ms,
            "credential": self._mac(f"credential {principal.credential}"),
        }
        body = base64.urlsafe_b64encode(json.dumps(said).encode()).decode()
        return f"{PREFIX}{body}.{self._mac(body)}", expires_ms

    def _mac(self, body: str) -> str:
        mac = hmac.digest(self._key, body.encode(), "sha256")
        return base64.urlsafe_b64encode(mac).decode()

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """None: the token is none of these."""
        token = credentials.token
        if token is None or not token.startswith(PREFIX):
            return None
        body, _, mac = token.removeprefix(PREFIX).partition(".")
        # Checked before anything of the body is decoded, and in constant time.
        mine = token.isascii() and hmac.compare_digest(self._mac(body).encode(), mac.encode())
        if not mine:
            raise NotAuthenticated("the token is not this node's; log in again")
        try:
            said = json.loads(base64.urlsafe_b64decode(body))
        except (binascii.Error, ValueError):
            raise NotAuthenticated("the token is malformed") from None
        if said["until"] <= self._now_ms():
            raise NotAuthenticated("the token has expired; log in again")
        return self._principal(
            said["name"], tuple(said["roles"]), said["until"], said.get("credential")
        )

    def _principal(
        self, name: str, roles: tuple[str, ...], expires_ms: int, credential: str | None
    ) -> Principal:
        """The user as it is now: the token of one that was removed, or has another password, is
        worth nothing."""
        record: UserRecord | None = None
        for users in self._users:
            record = record or users.find(name)
        if record is None:  # a user of a plugin's mechanism
            if any(users.any_known() for users in self._users):
                raise NotAuthenticated("the token's user is gone")
            return Principal(name, roles=roles, expires_ms=expires_ms)
        if record.disabled:
            raise NotAuthenticated("the token's user is gone")
        made = record.principal()
        # an empty one: a plugin's mechanism knew the user otherwise
        known = [self._mac(f"credential {each}") for each in ("", made.credential)]
        if credential not in known:
            raise NotAuthenticated("the user's password has changed; log in again")
        return replace(made, expires_ms=expires_ms)


def node_key(folder: Path) -> bytes:
    """The node's own secret, made when there is none. Raises StartupError."""
    path = folder / "token.key"
    try:
        with contextlib.suppress(FileNotFoundError):
            key = path.read_bytes()
            if len(key) == KEY_BYTES:
                return key
        folder.mkdir(parents=True, exist_ok=True)
        key = secrets.token_bytes(KEY_BYTES)
        temporary = path.with_suffix(".new")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        # Written and fsynced under another name first: a crash leaves the old key or the new one,
        # never half a key.
        os.replace(temporary, path)
    except OSError as error:
        raise StartupError(f"{path}: {error.strerror}") from None
    return key
