"""Permissions that the authorizer must be asked for before they are known, and claims that another
node must grant.

`Hub.allowed` raises AuthorizationPending then. Its caller puts the question into
`Outbox.questions`, with the continuation that runs when the answer is there: so a client waits for
its own answers alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lakemq.broker_core.api.types import AccessContext, Operation, Principal, Resource

Continuation = Callable[[int], None]
"""Called with the time (ms) when the answer is there: ask again."""


class Question(NamedTuple):
    """What `Broker.decide` takes."""

    principal: Principal
    operation: Operation
    resource: Resource
    context: AccessContext


class ExclusiveClaim(NamedTuple):
    """A client wants a filter for itself."""

    client_id: str
    topic_filter: str


class AuthorizationPending(Exception):
    """Never leaves the plugin."""

    def __init__(self, question: Question | ExclusiveClaim) -> None:
        super().__init__(str(question))
        self.question = question


class ClaimPending(AuthorizationPending):
    """The home of the filter has to be asked: waited for as for an authorizer."""
