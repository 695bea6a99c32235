"""A web service that is asked whether a client may publish to a topic name, or subscribe.

It answers 204 for yes, 401 or 403 for no, or 200 with JSON:

    {"result": "allow", "expires_in_ms": 60000}

`result`: `allow`, `deny`, or `ignore` (ask the next authorizer, at last the rules). Anything else
is no answer. Answers are remembered, so that what is published often is asked about seldom; while
one is awaited, its client alone waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import Final, Literal
from weakref import WeakValueDictionary

from pydantic import Field

from lakemq.broker_core.api.access import AccessContext, Operation, Principal, Resource
from lakemq.broker_core.api.errors import Undecided
from lakemq.broker_core.api.settings import Section
from lakemq.broker_core.security.authz.answers import Answers
from lakemq.broker_core.security.http_calls import HttpCalls, NoAnswer, Templates, answer_of
from lakemq.broker_core.security.settings import HttpRulesSettings

_log = logging.getLogger(__name__)
_ACTIONS: Final = {Operation.WRITE: "publish", Operation.READ: "subscribe"}
_VERDICTS: Final[dict[str, bool | None]] = {"allow": True, "deny": False, "ignore": None}
_SILENCE_MS: Final = 1_000
"""How long silence counts as the answer: a service that is down is not asked by each publish."""
_WORDS_MS: Final = 10_000
"""Least time between two log lines about silence."""


class _Answer(Section):
    """What the service says."""

    result: Literal["allow", "deny", "ignore"]
    """Whether it may."""
    expires_in_ms: int | None = Field(default=None, ge=0)
    """How long that holds (ms)."""


class HttpAuthorizer:
    """Implements the `AskingAuthorizer` port: asks a bounded number of questions at a time, each
    client's in turn."""

    def __init__(
        self,
        settings: HttpRulesSettings,
        now_ms: Callable[[], int],
        exempt: Callable[[Principal], bool] = lambda principal: False,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`exempt`: those of whom it is not asked. Raises ConfigError."""
        self._settings = settings
        self._now_ms = now_ms
        self._exempt = exempt
        self._calls = HttpCalls(settings, "security.authorizers: http", environment)
        self._body = Templates(settings.body)
        self._used = sorted(self._body.fields)
        self._answers: Answers[bool | None] = Answers(
            settings.cache_per_client_max, settings.cache_max
        )
        self._asking: dict[tuple[str, tuple[str, ...]], asyncio.Task[None]] = {}
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One question of a client at a time, however many it causes."""
        self._quiet_until_ms = 0
        self.questions = 0
        self.failures = 0

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext,
    ) -> bool | None:
        """What the service said. Raises Undecided where it has not been asked lately."""
        if not self._applies(principal, operation, resource):
            return None
        values = _values(principal, operation, resource, context)
        found = self._answers.get(self._client(values), self._question(values), self._now_ms())
        if found is None:
            raise Undecided(f"{values['action']} {resource.name}: the service is to be asked")
        return found[0]

    async def decide(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext,
    ) -> None:
        """Ask the service, unless that is under way. Takes `timeout_ms` at most."""
        if not self._applies(principal, operation, resource):
            return
        values = _values(principal, operation, resource, context)
        client, question = self._client(values), self._question(values)
        if self._answers.get(client, question, self._now_ms()) is not None:
            return
        task = self._asking.get((client, question))
        if task is None:
            task = asyncio.create_task(self._ask(client, question, values))
            self._asking[client, question] = task
            task.add_done_callback(lambda _: self._asking.pop((client, question), None))
        # Shielded: others may wait for the same answer.
        await asyncio.shield(task)

    def _applies(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return (
            resource.kind == "topic_name"
            and operation in _ACTIONS
            and not principal.rules
            and not self._exempt(principal)
        )

    def _client(self, values: Mapping[str, str]) -> str:
        """Whose share of the memory an answer takes."""
        return values["client_id" if "client_id" in self._body.fields else "username"]

    def _question(self, values: Mapping[str, str]) -> tuple[str, ...]:
        return tuple([values.get(name, "") for name in self._used])

    async def _ask(self, client: str, question: tuple[str, ...], values: dict[str, str]) -> None:
        settings = self._settings
        self.questions += 1
        hold_ms = settings.cache_ms
        try:
            line = self._lines.setdefault(client, asyncio.Lock())
            async with asyncio.timeout(settings.timeout_ms / 1000), line:
                # the time that it waits for its turn is included
                answer = answer_of(_Answer, *await self._calls.ask(self._body.filled(values)))
            verdict = _VERDICTS[answer.result]
            if answer.expires_in_ms is not None:
                hold_ms = min(hold_ms, max(_SILENCE_MS, answer.expires_in_ms))
        except (NoAnswer, TimeoutError) as error:
            self._complain(str(error) or f"nothing within {settings.timeout_ms} ms")
            verdict = False if settings.unreachable == "deny" else None
            hold_ms = _SILENCE_MS
        self._answers.put(client, question, verdict, self._now_ms() + hold_ms)

    def _complain(self, text: str) -> None:
        self.failures += 1
        now_ms = self._now_ms()
        if now_ms >= self._quiet_until_ms:
            self._quiet_until_ms = now_ms + _WORDS_MS
            _log.warning("%s: no answer: %s (%d so far)", self._settings.url, text, self.failures)

    async def close(self) -> None:
        """Close the HTTP connections."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._calls.close()


def _values(
    principal: Principal, operation: Operation, resource: Resource, context: AccessContext
) -> dict[str, str]:
    """What the fields of templates stand for."""
    return {
        "username": principal.name if principal.kind == "user" else "",
        "client_id": context.client_id,
        "peer_host": context.peer_host,
        "protocol": context.protocol,
        "listener": context.listener,
        "action": _ACTIONS[operation],
        "topic": resource.name,
        "qos": "" if context.qos is None else str(context.qos),
        "retain": "" if context.retain is None else str(context.retain).lower(),
    }
