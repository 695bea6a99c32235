"""Permissions that somebody else is to be asked for first. Pure.

Where an answer is not known, `Hub.allowed` raises Unanswered. Whoever asked puts the question into
`Outbox.questions`, with what is to be done when the answer is there; the engine asks. So a client
waits for its own answers and for nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lakemq.broker_core.api.types import AccessContext, Operation, Principal, Resource

Then = Callable[[int], None]
"""Called with the time (ms) when the answer is there: ask again."""


class Question(NamedTuple):
    """What `Broker.decide` takes."""

    principal: Principal
    operation: Operation
    resource: Resource
    context: AccessContext


class Unanswered(Exception):
    """Never crosses the plugin's door."""

    def __init__(self, question: Question) -> None:
        super().__init__(f"{question.operation.value} {question.resource.name}")
        self.question = question
