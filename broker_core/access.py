"""Who is it, and may they? Plugins are asked first, in order; then the built-in rules: anonymous
clients on the loopback interface only, and whoever is known may do everything.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from broker_core.api.errors import NotAuthenticated, NotAuthorized
from broker_core.api.ports import Authenticator, Authorizer, Credentials
from broker_core.api.types import ANONYMOUS, Operation, Principal, Resource


class Access:
    """The chains of authenticators and authorizers."""

    def __init__(
        self, authenticators: Sequence[Authenticator], authorizers: Sequence[Authorizer]
    ) -> None:
        self._authenticators = tuple(authenticators)
        self._authorizers = tuple(authorizers)

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

    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        """Raises NotAuthorized when an authorizer says no."""
        for authorizer in self._authorizers:
            verdict = authorizer.authorize(principal, operation, resource)
            if verdict is True:
                return
            if verdict is False:
                raise NotAuthorized(
                    f"{principal.name} may not {operation.value} {resource.kind} {resource.name}"
                )


def is_loopback(host: str) -> bool:
    """Whether an address (or `localhost`, or the empty name of a unix socket) is this machine."""
    if host in ("", "localhost", "unix"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
