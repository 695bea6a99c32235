"""Who is it, and may they? Plugins are asked first, in order; then the built-in rules: anonymous
clients on the loopback interface only, and whoever is known may do everything.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence

from broker_core.api.errors import NotAuthenticated, NotAuthorized, UnknownMechanism
from broker_core.api.ports import Authenticator, Authorizer, Credentials, Exchange, Mechanism
from broker_core.api.types import (
    ANONYMOUS,
    NO_CONTEXT,
    AccessContext,
    Operation,
    Principal,
    Resource,
)


class Access:
    """The chains of authenticators and authorizers, and the mechanisms of several steps."""

    def __init__(
        self,
        authenticators: Sequence[Authenticator],
        authorizers: Sequence[Authorizer],
        mechanisms: Sequence[Mechanism] = (),
    ) -> None:
        self._authenticators = tuple(authenticators)
        self._authorizers = tuple(authorizers)
        self._mechanisms: dict[str, Mechanism] = {}
        for mechanism in mechanisms:
            self._mechanisms.setdefault(mechanism.name, mechanism)
        self._watchers: list[Callable[[], None]] = []

    async def authenticate(self, credentials: Credentials) -> Principal:
        """The first principal that an authenticator names. Raises NotAuthenticated."""
        for authenticator in self._authenticators:
            principal = await authenticator.authenticate(credentials)
            if principal is not None:
                return principal
        if is_loopback(credentials.peer_host):
            return ANONYMOUS
        raise NotAuthenticated(f"anonymous clients are taken on the loopback interface only, not "
                               f"from {credentials.peer_host}")  # fmt: skip

    def mechanisms(self) -> Sequence[str]:
        return tuple(self._mechanisms)

    def begin_exchange(self, mechanism: str, credentials: Credentials) -> Exchange:
        """Raises UnknownMechanism."""
        found = self._mechanisms.get(mechanism)
        if found is None:
            known = ", ".join(self._mechanisms) or "none is"
            raise UnknownMechanism(f"no such way to authenticate; offered: {known}")
        return found.begin(credentials)

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> None:
        """Raises NotAuthorized when an authorizer says no."""
        for authorizer in self._authorizers:
            verdict = authorizer.authorize(principal, operation, resource, context)
            if verdict is True:
                return
            if verdict is False:
                raise NotAuthorized(
                    f"{principal.name} may not {operation.value} {resource.kind} {resource.name}"
                )

    # -- changes

    def on_access_change(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when rules have changed; returns its removal."""
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed)

    def rules_changed(self) -> None:
        """Tell all who keep answers."""
        for changed in tuple(self._watchers):
            changed()


def is_loopback(host: str) -> bool:
    """Whether an address (or `localhost`, or the empty name of a unix socket) is this machine."""
    if host in ("", "localhost", "unix"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
