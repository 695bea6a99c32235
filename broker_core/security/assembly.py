"""Builds the chains of authenticators and authorizers from section `[security]`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lakemq.broker_core.access import Access
from lakemq.broker_core.api.access import Credentials, Principal
from lakemq.broker_core.api.limits.connection_limits import peer_of
from lakemq.broker_core.api.ports import Authenticator, Authorizer, Mechanism
from lakemq.broker_core.security.auth_copy import CopiedAccess
from lakemq.broker_core.security.authn.api_keys import ApiKeys
from lakemq.broker_core.security.authn.attempts import Attempts
from lakemq.broker_core.security.authn.certificates import CertificateAuthenticator
from lakemq.broker_core.security.authn.password_users import (
    FileUsers,
    PasswordAuthenticator,
    ScramMechanism,
    Users,
)
from lakemq.broker_core.security.authn.passwords import PasswordChecker
from lakemq.broker_core.security.authn.scram import HASHES
from lakemq.broker_core.security.authn.session_tokens import SessionTokens, node_key
from lakemq.broker_core.security.authz.rule_book import RuleBook
from lakemq.broker_core.security.catalog_forms import limits_of
from lakemq.broker_core.security.quotas import Quotas
from lakemq.broker_core.security.settings import (
    AuthenticatorSettings,
    CertificateSettings,
    HttpSettings,
    JwtSettings,
    PasswordFileSettings,
    SecuritySettings,
    UsersSettings,
)
from lakemq.meta_service.api.auth import Quota
from lakemq.meta_service.api.types import MetaClient

if TYPE_CHECKING:
    from lakemq.broker_core.security.authn.http_callback import HttpAuthenticator
    from lakemq.broker_core.security.authn.tokens import TokenAuthenticator
    from lakemq.broker_core.security.authz.http_rules import HttpAuthorizer

_REFRESH_EVERY_S: Final = 1.0


class Security:
    """Authentication and authorization of one node: opened before its listeners, closed after."""

    def __init__(
        self,
        settings: SecuritySettings,
        now_ms: Callable[[], int],
        *,
        meta: MetaClient | None = None,
        folder: Path | None = None,
        authenticators: Sequence[Authenticator] = (),
        authorizers: Sequence[Authorizer] = (),
        mechanisms: Sequence[Mechanism] = (),
    ) -> None:
        """Those of plugins come first. `folder` holds the node's key for tokens.
        Raises ConfigError, naming the file that is missing or wrong."""
        self._settings = settings
        self._now_ms = now_ms
        self.attempts = Attempts(settings.attempt_rules())
        self.checker = PasswordChecker(settings.password_threads, settings.passwords_waiting_max)
        self._users: list[Users] = []
        self._issuers: list[TokenAuthenticator] = []
        self._callbacks: list[HttpAuthenticator | HttpAuthorizer] = []
        self.rule_book = RuleBook(settings, self._rules_changed)
        self.http_authorizers = self._http_authorizers()
        self._callbacks += self.http_authorizers
        self._kept_quotas: Mapping[str, Quota] = {}
        self.quotas = Quotas({each.who: each.limits() for each in settings.quotas})
        self._kept = (
            CopiedAccess(meta, self.rule_book.replace, self._take_quotas)
            if meta is not None
            else None
        )
        self.api_keys = ApiKeys(self._kept, now_ms) if self._kept is not None else None
        self._own_authenticators = [
            self._authenticator(each)
            for each in settings.authenticators
            if self._kept is not None or not isinstance(each, UsersSettings)
        ]
        self._scram_mechanisms = self._scram()
        self._session_tokens = self._tokens(folder)
        self.access = Access(
            *self._chains(authenticators, authorizers, mechanisms),
            anonymous=settings.anonymous,
            attempts=self.attempts,
            tokens=self._session_tokens,
            api_keys=self.api_keys,
            quotas=self.quotas,
            now_ms=now_ms,
            dummy_verify=self._dummy_verify,
            is_operator=self.rule_book.is_admin,
            is_withdrawn=self._is_withdrawn,
        )
        self._watcher: asyncio.Task[None] | None = None

    def _chains(
        self,
        authenticators: Sequence[Authenticator],
        authorizers: Sequence[Authorizer],
        mechanisms: Sequence[Mechanism],
    ) -> tuple[Sequence[Authenticator], Sequence[Authorizer], Sequence[Mechanism]]:
        """Those of plugins come first."""
        return (
            [*authenticators, *self._own_authenticators],
            [*authorizers, *self.http_authorizers, self.rule_book],
            [*mechanisms, *self._scram_mechanisms],
        )

    def use_plugins(
        self,
        authenticators: Sequence[Authenticator],
        authorizers: Sequence[Authorizer],
        mechanisms: Sequence[Mechanism],
    ) -> None:
        """Have these of plugins from now on."""
        self.access.use(*self._chains(authenticators, authorizers, mechanisms))

    def _authenticator(self, settings: AuthenticatorSettings) -> Authenticator:
        if isinstance(settings, CertificateSettings):
            return CertificateAuthenticator(settings)
        if isinstance(settings, JwtSettings):
            # PyJWT and all of `cryptography` that it imports: for nodes that take tokens.
            from lakemq.broker_core.security.authn.tokens import TokenAuthenticator

            tokens = TokenAuthenticator(settings, self._now_ms)
            self._issuers.append(tokens)
            return tokens
        if isinstance(settings, HttpSettings):
            from lakemq.broker_core.security.authn.http_callback import HttpAuthenticator

            callback = HttpAuthenticator(settings, self._now_ms)
            self._callbacks.append(callback)
            return callback
        users: Users
        if isinstance(settings, PasswordFileSettings):
            users = FileUsers(settings.file)
        else:
            assert self._kept is not None
            users = self._kept
        self._users.append(users)
        return PasswordAuthenticator(users, self.checker)

    def _http_authorizers(self) -> list[HttpAuthorizer]:
        if not self._settings.authorizers:
            return []
        from lakemq.broker_core.security.authz.http_rules import HttpAuthorizer

        is_admin = self.rule_book.is_admin
        return [HttpAuthorizer(each, self._now_ms, is_admin) for each in self._settings.authorizers]

    def _scram(self) -> list[ScramMechanism]:
        if not (self._settings.scram and self._users):
            return []
        return [ScramMechanism(name, self._users, self.attempts, self._now_ms) for name in HASHES]

    def _tokens(self, folder: Path | None) -> SessionTokens | None:
        if folder is None:
            return None
        lifetime_ms = self._settings.token_lifetime_ms
        return SessionTokens(node_key(folder), self._users, lifetime_ms, self._now_ms)

    async def _dummy_verify(self, credentials: Credentials) -> None:
        """Hash a password for a user that does not exist (constant-time login)."""
        # Without any users all names are unknown, so there is nothing to hide and no hash to pay
        # for.
        if any(users.any_known() for users in self._users):
            password = credentials.password or b""
            await self.checker.check(None, password, peer_of(credentials.peer_host))

    def _take_quotas(self, kept: Mapping[str, Quota]) -> None:
        self._kept_quotas = kept
        written = {each.who: each.limits() for each in self._settings.quotas}
        self.quotas.replace({**written, **limits_of(kept)})

    def reconfigure(self, settings: SecuritySettings) -> None:
        """Use what is `Reloadable` in them. Who is logged in stays so, and obeys the new rules."""
        self._settings = settings
        self.attempts.rules = settings.attempt_rules()
        self.rule_book.reconfigure(settings)
        self._take_quotas(self._kept_quotas)
        if self._session_tokens is not None:
            self._session_tokens.lifetime_ms = settings.token_lifetime_ms

    def _is_withdrawn(self, principal: Principal) -> bool:
        """Whether each source of users that made the principal has withdrawn it since."""
        sources = self._users
        if self._kept is not None and self._kept not in sources:
            sources = [*sources, self._kept]  # API keys are there
        said = [users.withdrawn(principal) for users in sources]
        known = [each for each in said if each is not None]
        # Stores that do not know the principal have no say; of those that do, one that still has it
        # is enough.
        return bool(known) and all(known)

    def _rules_changed(self) -> None:
        self.access.rules_changed()

    # -- life

    async def start(self) -> None:
        """Returns when users and rules of the MetaService are loaded, and keys of issuers, if
        these answer."""
        await asyncio.gather(*(issuer.start() for issuer in self._issuers))
        if self._kept is not None:
            await self._kept.start()
            secret = await self._kept.cluster_secret()
            for mechanism in self._scram_mechanisms:
                mechanism.secret = secret
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_EVERY_S)
            self.refresh()

    def refresh(self) -> None:
        """Read files again that changed; called about once a second."""
        self.rule_book.refresh()
        files = [users for users in self._users if isinstance(users, FileUsers)]
        if any([users.changed() for users in files]):
            self._rules_changed()

    async def stop(self) -> None:
        """End background tasks and threads."""
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        if self._kept is not None:
            await self._kept.stop()
        for callback in [*self._callbacks, *self._issuers]:
            await callback.close()
        self.checker.close()
