"""Authentication and authorization: asks the authenticators and authorizers in order, those of
plugins first. Unauthenticated clients become anonymous if permitted: by default on the loopback
interface only.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Final, Literal, Protocol, runtime_checkable

from lakemq.broker_core.api.access import Verdict
from lakemq.broker_core.api.errors import (
    LakeMQError,
    NotAuthenticated,
    NotAuthorized,
    Unavailable,
    Undecided,
    UnknownMechanism,
)
from lakemq.broker_core.api.hosts import is_loopback
from lakemq.broker_core.api.ports import (
    AskingAuthorizer,
    Authenticator,
    Authorizer,
    Credentials,
    Exchange,
    ExplainingAuthorizer,
    Mechanism,
)
from lakemq.broker_core.api.state.internal_topics import is_internal, refusal
from lakemq.broker_core.api.types import (
    ANONYMOUS,
    NO_CONTEXT,
    AccessContext,
    Operation,
    Principal,
    Resource,
)
from lakemq.broker_core.security.authn.api_keys import ApiKeys
from lakemq.broker_core.security.authn.attempts import AttemptRules, Attempts, ExpiredToken
from lakemq.broker_core.security.authn.session_tokens import SessionTokens
from lakemq.broker_core.security.quotas import Quotas, Use

_log = logging.getLogger(__name__)
Anonymous = Literal["loopback", "never", "always"]
_UNIX_PEERS: Final = ("", "unix")
"""What listeners say of a client that came by a unix socket: it has no address."""
_is_near: Final = lru_cache(maxsize=1024)(is_loopback)
"""Of addresses of clients: many come from few, and those are short."""


@runtime_checkable
class CredentialMatcher(Protocol):
    """An authenticator that knows which credentials are of its kind. A client that presents such
    credentials and is not accepted is refused, never made anonymous."""

    def handles(self, credentials: Credentials) -> bool:
        """Whether these credentials are of the kind that it checks."""


@runtime_checkable
class NeedsCredentials(Protocol):
    """An authenticator that may say that it knows no client which shows no credentials."""

    needs_credentials: bool
    """Whether `authenticate` says None of a client that has no user name, password, token or
    verified certificate: it is not asked then."""


async def _no_verify(credentials: Credentials) -> None:
    """Without passwords there are no response times to even out."""


class Access:
    """The chains of authenticators and authorizers, and the SASL mechanisms, of one node."""

    def __init__(
        self,
        authenticators: Sequence[Authenticator],
        authorizers: Sequence[Authorizer],
        mechanisms: Sequence[Mechanism] = (),
        *,
        anonymous: Anonymous = "loopback",
        attempts: Attempts | None = None,
        now_ms: Callable[[], int] = lambda: 0,
        tokens: SessionTokens | None = None,
        api_keys: ApiKeys | None = None,
        quotas: Quotas | None = None,
        dummy_verify: Callable[[Credentials], Awaitable[object]] = _no_verify,
        is_operator: Callable[[Principal], bool] = lambda principal: False,
        is_withdrawn: Callable[[Principal], bool] = lambda principal: False,
    ) -> None:
        self._is_operator = is_operator
        self._is_withdrawn = is_withdrawn
        self._tokens = tokens
        self.quotas = quotas if quotas is not None else Quotas({})
        # The node's own tokens and API keys first: they are recognized by their prefix, without
        # asking a backend.
        self._own = tuple(each for each in (tokens, api_keys) if each is not None)
        self._take(authenticators, authorizers, mechanisms)
        self._anonymous = anonymous
        self._attempts = attempts or Attempts(AttemptRules(0, 0))
        self._now_ms = now_ms
        self._dummy_verify = dummy_verify
        """Takes as long as checking a password, so that response times do not reveal which users
        exist."""
        self._watchers: list[Callable[[], None]] = []
        self.accepted = 0
        self.refused = 0

    def _take(
        self,
        authenticators: Sequence[Authenticator],
        authorizers: Sequence[Authorizer],
        mechanisms: Sequence[Mechanism],
    ) -> None:
        self._authenticators: tuple[Authenticator, ...] = (*self._own, *authenticators)
        self._authorizers = tuple(authorizers)
        # Once: to look for methods of a protocol takes longer than most of what they do.
        self._matchers = [one for one in self._authenticators if isinstance(one, CredentialMatcher)]
        self._knows_strangers = not all(
            isinstance(one, NeedsCredentials) and one.needs_credentials
            for one in self._authenticators
        )
        self._asking = [one for one in self._authorizers if isinstance(one, AskingAuthorizer)]
        self._mechanisms: dict[str, Mechanism] = {}
        for mechanism in mechanisms:
            # The first of a name counts: plugins come before what is built in.
            self._mechanisms.setdefault(mechanism.name, mechanism)

    def use(
        self,
        authenticators: Sequence[Authenticator],
        authorizers: Sequence[Authorizer],
        mechanisms: Sequence[Mechanism],
    ) -> None:
        """Go on with other chains. Who is logged in stays so, and obeys the new authorizers."""
        self._take(authenticators, authorizers, mechanisms)
        self.rules_changed()

    def recognize(self, credentials: Credentials) -> Principal | None:
        """The principal of a client that shows no credentials, as `authenticate` tells it; None:
        an authenticator has to be asked. Raises NotAuthenticated."""
        if (
            self._knows_strangers
            or credentials.username is not None
            or credentials.password is not None
            or credentials.token is not None
            or credentials.certificate_subject is not None
        ):
            return None
        try:
            principal = self._anonymous_from(credentials.peer_host)
        except NotAuthenticated:
            self.refused += 1
            raise
        self.accepted += 1
        return principal

    async def authenticate(self, credentials: Credentials) -> Principal:
        """The principal of the first authenticator that knows the credentials. Raises
        NotAuthenticated, Unavailable (a backend does not answer)."""
        try:
            if credentials.password is None:
                principal = await self._principal(credentials)
            else:
                principal = await self._guarded(credentials)
        except NotAuthenticated:
            self.refused += 1
            raise
        self.accepted += 1
        return principal

    async def _guarded(self, credentials: Credentials) -> Principal:
        """Authenticate by password, with failed attempts limited: passwords can be guessed, also
        those that look like tokens."""
        host, name = credentials.peer_host, credentials.username or ""
        self._check_attempts(host, name)
        try:
            principal = await self._principal(credentials)
        # Not a guess: its signature was right, so it does not count against the client.
        except ExpiredToken:
            raise
        except NotAuthenticated:
            self._attempts.failed(host, name, self._now_ms())
            raise
        self._check_attempts(host, name)  # it may have tried many in parallel
        self._attempts.succeeded(host, name)
        return principal

    def _check_attempts(self, host: str, name: str) -> None:
        wait_ms = self._attempts.wait_ms(host, name, self._now_ms())
        if wait_ms:
            raise NotAuthenticated(f"too many failed logins; try again in {-(-wait_ms // 1000)} s")

    async def _principal(self, credentials: Credentials) -> Principal:
        for authenticator in self._authenticators:
            principal = await self._asked(authenticator, credentials)
            if principal is not None:
                return principal
        kinds = (one.handles(credentials) for one in self._matchers)
        if credentials.token is not None or any(kinds):
            await self._dummy_verify(credentials)
            raise NotAuthenticated("wrong user or password")
        return self._anonymous_from(credentials.peer_host)

    async def _asked(
        self, authenticator: Authenticator, credentials: Credentials
    ) -> Principal | None:
        """Ask one authenticator. If it fails, perhaps in a plugin, the login is refused. Only the
        type of the exception is logged: its text may hold a secret."""
        try:
            return await authenticator.authenticate(credentials)
        except LakeMQError:
            raise
        except Exception as error:  # whatever a plugin raises
            kinds = type(authenticator).__name__, type(error).__name__
            _log.error("authenticator %s failed with %s; the login was refused", *kinds)
            # Refused and not handed to the next one: a failing authenticator must not turn its
            # users into anonymous clients.
            raise Unavailable("authentication is not available now; try again") from None

    def _anonymous_from(self, host: str) -> Principal:
        if self._anonymous == "always":
            return ANONYMOUS
        if self._anonymous == "never":
            raise NotAuthenticated(
                'anonymous clients are not accepted (security.anonymous = "never"); log in'
            )
        if host in _UNIX_PEERS or _is_near(host):
            return ANONYMOUS
        raise NotAuthenticated(
            f"anonymous clients are accepted on the loopback interface only, not from {host}"
        )

    def charge(self, principal: Principal, use: Use) -> int:
        """Charge a use to the principal's quota; how long it has to wait now (ms)."""
        return self.quotas.charge(principal, use, self._now_ms())

    def issue_token(self, principal: Principal) -> tuple[str, int]:
        """A bearer token and when it expires. Raises UnknownMechanism where tokens are off."""
        if self._tokens is None:
            raise UnknownMechanism("this node issues no tokens")
        return self._tokens.issue(principal)

    def mechanisms(self) -> Sequence[str]:
        """Names of the mechanisms of several steps."""
        return tuple(self._mechanisms)

    def begin_exchange(self, mechanism: str, credentials: Credentials) -> Exchange:
        """Start one run of a mechanism. Raises UnknownMechanism."""
        found = self._mechanisms.get(mechanism)
        if found is None:
            known = ", ".join(self._mechanisms) or "none"
            raise UnknownMechanism(f"unknown mechanism; supported: {known}")
        return found.begin(credentials)

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> None:
        """Raises NotAuthorized when an authorizer denies it, NotAuthenticated when the credentials
        have expired or were withdrawn, Undecided when `decide` must come first. Nodes may do
        everything; internal topics are for nodes alone, except that operators may read them."""
        if principal.kind == "node":
            return
        # At each operation and not at the login alone: a connection may outlive its credentials.
        if self.ended(principal):
            raise NotAuthenticated("the credentials have expired; log in again")
        if resource.kind == "topic" and is_internal(resource.name):
            operator = self._is_operator(principal)
            if why := refusal(resource.name, operation, is_operator=operator):
                raise NotAuthorized(why)
        for authorizer in self._authorizers:
            verdict = authorizer.authorize(principal, operation, resource, context)
            if verdict is True:
                return
            if verdict is False:
                raise NotAuthorized(
                    f"{principal.name} may not {operation.value} {resource.kind} {resource.name}"
                )

    def verdict(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> Verdict:
        """What `authorize` decides, and which authorizer does, by which rule."""
        question = (principal, operation, resource, context)
        try:
            self.authorize(*question)
        except Undecided:
            return Verdict(False, "an authorizer is still being asked")
        except LakeMQError as error:
            allowed, reason = False, str(error)
        else:
            allowed, reason = True, "nothing forbids it"
        internal = resource.kind == "topic" and is_internal(resource.name)
        if principal.kind == "node" or internal or self.ended(principal):
            return Verdict(allowed, reason)
        for authorizer in self._authorizers:
            if authorizer.authorize(*question) is not None:
                by = f"authorizer {type(authorizer).__name__}"
                if isinstance(authorizer, ExplainingAuthorizer):
                    by = authorizer.reason(*question)
                return Verdict(allowed, by)
        return Verdict(allowed, reason)

    def ended(self, principal: Principal) -> bool:
        """Whether its credentials have expired or were withdrawn."""
        if principal.expires_ms is not None and principal.expires_ms <= self._now_ms():
            return True
        return self._is_withdrawn(principal)

    async def decide(
        self, principal: Principal, operation: Operation, resource: Resource, context: AccessContext
    ) -> None:
        """Resolve what authorizers must ask a backend about, so that `authorize` can answer at
        once."""
        for authorizer in self._asking:
            await authorizer.decide(principal, operation, resource, context)

    # -- changes

    def on_access_change(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when rules have changed; returns its removal."""
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed)

    def rules_changed(self) -> None:
        """Notify everyone who caches answers."""
        # A copy: a watcher may remove itself while it is called.
        for changed in tuple(self._watchers):
            changed()
