"""Users, rules and quotas of the MetaService, as a local copy that follows it: a login needs no
call over the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from lakemq.broker_core.api.access import Principal, Rule
from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.security.authn.api_keys import is_key
from lakemq.broker_core.security.authn.users import UserRecord
from lakemq.broker_core.security.authz.rules import check_rule
from lakemq.broker_core.security.catalog_forms import record_of, rule_of
from lakemq.meta_service.api.auth import AuthCopy, Quota, User
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.types import Compare, MetaClient, Put

_log = logging.getLogger(__name__)
_RETRY_FIRST_MS: Final = 1_000
_RETRY_MAX_MS: Final = 5_000
_rng: Final = random.Random()
SECRET_KEY: Final = b"broker/security/secret"
"""Key of the cluster's secret in the MetaService."""
SECRET_BYTES: Final = 32
_MARK: Final = {"kept_by": "metaservice"}
"""Attribute of their principals."""


class CopiedAccess:
    """Implements `Users`; calls back when rules or quotas changed."""

    def __init__(
        self,
        meta: MetaClient,
        rules_changed: Callable[[Mapping[str, Rule]], None],
        quotas_changed: Callable[[Mapping[str, Quota]], None] = lambda quotas: None,
    ) -> None:
        self._meta = meta
        self._rules_changed = rules_changed
        self._quotas_changed = quotas_changed
        self._copy = AuthCopy()
        self._credentials: dict[str, tuple[User, str]] = {}
        self._loaded = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None

    def find(self, name: str) -> UserRecord | None:
        """See `Users`."""
        user = self._copy.users.get(name)
        if user is None:
            return None
        return record_of(replace(user, attributes={**user.attributes, **_MARK}))

    def withdrawn(self, principal: Principal) -> bool | None:
        """See `Users`."""
        if principal.attributes.get("kept_by") != _MARK["kept_by"]:
            return None
        user = self._copy.users.get(principal.name)
        if user is None or user.disabled:
            return True
        return bool(principal.credential) and self._credential(user) != principal.credential

    def _credential(self, user: User) -> str:
        known = self._credentials.get(user.name)
        if known is None or known[0] is not user:
            known = self._credentials[user.name] = (user, record_of(user).credential())
        return known[1]

    def any_known(self) -> bool:
        """See `Users`."""
        # API keys are no users: where there are only keys, the names of clients are still ignored.
        return any(not is_key(each.attributes) for each in self._copy.users.values())

    async def start(self) -> None:
        """Returns when the copy is complete."""
        self._follower = asyncio.create_task(self._follow())
        await self._loaded.wait()

    async def cluster_secret(self) -> bytes:
        """A secret that all nodes share and that never changes; the first that asks makes it."""
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random)
        while True:
            try:
                found = await self._meta.get(SECRET_KEY)
                if found is not None:
                    return found.value
                made = Put(SECRET_KEY, secrets.token_bytes(SECRET_BYTES))
                # Compare-and-set, then read again: of several nodes that make one at once, the
                # first one's counts for all.
                await self._meta.txn([Compare(SECRET_KEY, 0)], [made])
            except (MetaError, OSError) as error:
                _log.warning("could not read the cluster's secret, trying again: %s", error)
                await asyncio.sleep(backoff.next_s())

    async def _follow(self) -> None:
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random)
        while True:
            try:
                async for change in self._meta.follow_auth(self._copy):
                    backoff.reset()
                    self._notify(change.kind if change is not None else "")
                    self._loaded.set()
            except (MetaError, OSError) as error:
                _log.warning("could not refresh users and rules: %s", error)
            await asyncio.sleep(backoff.next_s())

    def _notify(self, kind: str) -> None:
        """Call back about what changed; `kind` empty: everything may have."""
        if kind in ("", "user"):
            self._credentials.clear()
        # Also for users: who caches answers must forget those of a user whose roles have changed.
        if kind in ("", "user", "rule"):
            self._rules_changed(self._rules())
        if kind in ("", "quota"):
            self._quotas_changed(dict(self._copy.quotas))

    def _rules(self) -> dict[str, Rule]:
        found = {}
        for rule_id, acl_rule in self._copy.rules.items():
            rule = rule_of(acl_rule)
            if complaint := check_rule(rule):
                _log.error("ignoring invalid rule %s of the MetaService: %s", rule_id, complaint)
            else:
                found[rule_id] = rule
        return found

    async def stop(self) -> None:
        """End following the MetaService."""
        if self._follower is not None:
            self._follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._follower
