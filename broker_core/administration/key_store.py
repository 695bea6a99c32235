"""API keys in the MetaService: made, listed, revoked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lakemq.broker_core.api.administration.operations import KeyReport
from lakemq.broker_core.api.errors import Conflict, UnknownEntry
from lakemq.broker_core.security.authn.api_keys import (
    HASH,
    USER_PREFIX,
    ApiKeys,
    expiry_of,
    is_key,
    made_key,
)
from lakemq.meta_service.api.auth import User
from lakemq.meta_service.api.remote.client import RemoteClient

KEYS_MAX: Final = 1_000
"""Of a cluster: each node has a copy of all."""


class KeyStore:
    """Raises what the MetaService does, besides what is told."""

    def __init__(
        self, control: RemoteClient, known: ApiKeys | None, now_ms: Callable[[], int]
    ) -> None:
        """`known`: keys as this node sees them used."""
        self._control = control
        self._known = known
        self._now_ms = now_ms

    async def list_all(self) -> Sequence[KeyReport]:
        """By id."""
        return [_report(each) for each in await self._control.users() if is_key(each.attributes)]

    def uses(self) -> Mapping[str, int]:
        """Id -> when this node was shown a key last."""
        return {} if self._known is None else self._known.uses

    async def add(
        self, says: str, roles: Sequence[str], made_by: str, expires_ms: int | None
    ) -> tuple[KeyReport, str]:
        """A new key, and its text. Raises Conflict: there are too many."""
        if len(await self.list_all()) >= KEYS_MAX:
            raise Conflict(f"there are {KEYS_MAX} API keys, which is the most: revoke some")
        made = made_key()
        attributes = {
            HASH: made.hash, "says": says, "made_by": made_by, "made_ms": str(self._now_ms()),
        }  # fmt: skip
        if expires_ms is not None:
            attributes["expires_ms"] = str(expires_ms)
        user = User(USER_PREFIX + made.key_id, tuple(dict.fromkeys(roles)), attributes)
        await self._control.put_user(user, expected_revision=0)
        return _report(user), made.key

    async def delete(self, key_id: str) -> None:
        """Raises UnknownEntry."""
        user = await self._control.user(USER_PREFIX + key_id)
        if user is None or not is_key(user.attributes):
            raise UnknownEntry(f"there is no API key {key_id[:100]}")
        await self._control.delete_user(user.name, expected_revision=user.revision)


def _report(user: User) -> KeyReport:
    said = user.attributes
    made_ms = said.get("made_ms", "")
    return KeyReport(
        user.name.removeprefix(USER_PREFIX),
        said.get("says", ""),
        user.roles,
        said.get("made_by", ""),
        int(made_ms) if made_ms.isascii() and made_ms.isdecimal() else 0,
        expiry_of(said),
    )
