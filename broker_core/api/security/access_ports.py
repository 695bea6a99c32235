"""Ports of plugins that say who a client is and what it may do."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from lakemq.broker_core.api.types import (
    Accepted,
    AccessContext,
    Challenge,
    Credentials,
    Operation,
    Principal,
    Resource,
)


class Authenticator(Protocol):
    """Determines who a client is."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """The principal; None: not responsible for such credentials, ask the next authenticator.
        Raises NotAuthenticated."""


class Exchange(Protocol):
    """One run of a mechanism that takes several steps. Dropped when the client leaves."""

    async def step(self, data: bytes) -> Challenge | Accepted:
        """What the client said -> what to ask it next, or who it is. The first call takes the
        initial response, `b""` when the client sent none. Raises NotAuthenticated, also for data
        that is not a message of the mechanism; the exchange is over then."""


@runtime_checkable
class Mechanism(Protocol):
    """A way to authenticate in several steps, like SCRAM."""

    name: str
    """As the client asks for it, like `SCRAM-SHA-256`."""

    def begin(self, credentials: Credentials) -> Exchange:
        """Start an exchange. `credentials` tells where the client is; it may name no user."""


class Authorizer(Protocol):
    """Decides what a principal may do."""

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext,
    ) -> bool | None:
        """True allows, False denies; None: not responsible, ask the next one. Answers are cached by
        connections until `Broker.on_access_change` tells that they may have changed. Raises
        Undecided when the answer is not known yet; only an `AskingAuthorizer` may, and of
        resources of kind `topic_name` alone."""


@runtime_checkable
class ExplainingAuthorizer(Protocol):
    """An authorizer that can tell why it decides as it does."""

    def reason(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext,
    ) -> str:
        """The rule behind `authorize`'s answer, in words."""


@runtime_checkable
class AskingAuthorizer(Protocol):
    """An authorizer that takes time to know an answer."""

    async def decide(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext,
    ) -> None:
        """Find out what `authorize` will answer, and return within a bounded time, whatever
        happens; it answers the same question without raising Undecided then."""
