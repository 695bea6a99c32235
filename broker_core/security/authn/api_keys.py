"""API keys: long random bearer tokens that the MetaService keeps the hash of, as a user of its own
(`key:ID`) without a password. They are withdrawn like users, at once and on all nodes.

    lmqk_<id>_<secret>     id: 12, secret: 43 letters, digits, `-` or `_`
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from lakemq.broker_core.api.errors import NotAuthenticated
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.types import Principal
from lakemq.broker_core.security.authn.users import UserRecord

PREFIX: Final = "lmqk_"
USER_PREFIX: Final = "key:"
HASH: Final = "api_key"
"""Attribute with the hash (SHA-256, hex) of 256 random bits: they are too many to be tried, so a
slower hash gains nothing. Other attributes: `says`, `made_by`, `made_ms`, and `expires_ms` where it
ends."""
_KEY: Final = re.compile(rf"{PREFIX}([A-Za-z0-9-]{{12}})_([A-Za-z0-9_-]{{43}})")
_USES_MAX: Final = 10_000
_REFUSED: Final = "the API key is unknown, revoked or expired"
"""One message for all failures, so that ids can't be enumerated."""


class KeptUsers(Protocol):
    """Users of the MetaService."""

    def find(self, name: str) -> UserRecord | None:
        """None: there is none of this name."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was made just now: the only moment at which it is known."""

    key_id: str
    key: str
    hash: str


def made_key() -> NewKey:
    """A new one."""
    key_id = secrets.token_hex(6)
    secret = secrets.token_urlsafe(32)
    return NewKey(key_id, f"{PREFIX}{key_id}_{secret}", _hash(secret))


def is_key(attributes: Mapping[str, str]) -> bool:
    """Whether a user with these attributes is an API key."""
    return HASH in attributes


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class ApiKeys:
    """Knows them: implements the `Authenticator` port."""

    needs_credentials = True

    def __init__(self, users: KeptUsers, now_ms: Callable[[], int]) -> None:
        self._users = users
        self._now_ms = now_ms
        self.uses: dict[str, int] = {}
        """Id -> when it was shown last to this node (ms since 1970, UTC)."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """None: there is no token that looks like a key. Raises NotAuthenticated."""
        token = credentials.token
        if token is None or not token.startswith(PREFIX):
            return None
        match = _KEY.fullmatch(token)
        if match is None:
            raise NotAuthenticated(_REFUSED)
        key_id, secret = match.groups()
        record = self._users.find(USER_PREFIX + key_id)
        known = record.attributes.get(HASH, "") if record is not None else ""
        right = hmac.compare_digest(_hash(secret).encode(), known.encode())
        if record is None or record.disabled or not right:
            raise NotAuthenticated(_REFUSED)
        now_ms, expires_ms = self._now_ms(), expiry_of(record.attributes)
        if expires_ms is not None and expires_ms <= now_ms:
            raise NotAuthenticated(_REFUSED)
        self._note_use(key_id, now_ms)
        made = record.principal()
        attributes = {name: value for name, value in made.attributes.items() if name != HASH}
        return Principal(
            made.name, "user", attributes, made.roles, expires_ms=expires_ms,
            credential=made.credential,
        )  # fmt: skip

    def _note_use(self, key_id: str, now_ms: int) -> None:
        self.uses.pop(key_id, None)
        self.uses[key_id] = now_ms
        if len(self.uses) > _USES_MAX:
            del self.uses[next(iter(self.uses))]


def expiry_of(attributes: Mapping[str, str]) -> int | None:
    """When a key ends; None: never. What can't be read has ended."""
    text = attributes.get("expires_ms")
    if text is None:
        return None
    return int(text) if text.isascii() and text.isdecimal() else 0
