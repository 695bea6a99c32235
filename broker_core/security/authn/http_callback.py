"""A web service that is asked who a client is, and what it may do.

It answers 200 with JSON, or 204 for "yes, as it says it is":

    {"result": "allow", "user": "ann", "roles": ["operator"], "expires_in_ms": 3600000,
     "rules": [{"operations": ["publish"], "resources": ["topic_name:devices/%c/#"]}]}

`result`: `allow`, `deny`, or `ignore` (ask the next authenticator). 401 and 403 are `deny`.
Anything else counts as no answer. `rules`, when there, are all that the client may do.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from pydantic import Field

from lakemq.broker_core.api.access import Rule
from lakemq.broker_core.api.errors import NotAuthenticated, Unavailable
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.settings import Section
from lakemq.broker_core.api.types import Principal
from lakemq.broker_core.security.http_calls import HttpCalls, NoAnswer, Templates, answer_of
from lakemq.broker_core.security.settings import HttpSettings, RuleSettings

_log = logging.getLogger(__name__)
_KNOWN_MAX: Final = 10_000


class _AnswerRule(RuleSettings):
    """A rule in an answer; it is about the client that was asked about."""

    who: list[str] = Field(default_factory=lambda: ["any"])
    """Whom it is about."""


class _Answer(Section):
    """What the service says."""

    result: str
    """`allow`, `deny` or `ignore`."""
    user: str = Field(default="", max_length=1024)
    """Name of the user; empty: as it said itself."""
    roles: list[str] = Field(default_factory=list, max_length=1000)
    """The user's roles."""
    rules: list[_AnswerRule] | None = Field(default=None, max_length=1000)
    """What it may do."""
    expires_in_ms: int | None = Field(default=None, ge=0)
    """How long that holds (ms)."""


class HttpAuthenticator:
    """Asks a web service, a bounded number of questions at a time."""

    needs_credentials = True

    def __init__(
        self,
        settings: HttpSettings,
        now_ms: Callable[[], int],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._settings = settings
        self._now_ms = now_ms
        self._calls = HttpCalls(settings, "security.authenticators: http", environment)
        self._body = Templates(settings.body)
        self._known: OrderedDict[bytes, tuple[int, Principal | None | NotAuthenticated]]
        self._known = OrderedDict()
        self.failures = 0

    def handles(self, credentials: Credentials) -> bool:
        """Whether the web service is asked about such credentials."""
        return credentials.username is not None or credentials.token is not None

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Raises NotAuthenticated; Unavailable when there is no answer."""
        if not self.handles(credentials):
            return None
        body = self._body.filled(_values(credentials))
        asked = json.dumps([credentials.username, body], sort_keys=True)
        # A hash as key, so that no passwords are kept in memory for the cache's sake.
        mark = hashlib.sha256(asked.encode()).digest()
        known = self._known.get(mark)
        now_ms = self._now_ms()
        if known is None or known[0] <= now_ms:
            try:
                answer = answer_of(_Answer, *await self._calls.ask(body))
                outcome = self._recheckd(answer, credentials)
            except NoAnswer as error:
                self.failures += 1
                _log.warning("%s: no answer: %s", self._settings.url, error)
                if self._settings.unreachable == "next":
                    return None
                raise Unavailable("authentication is not available now; try again") from None
            until_ms = now_ms + self._settings.cache_ms
            if isinstance(outcome, Principal) and outcome.expires_ms is not None:
                # Never longer than the service said that the login holds.
                until_ms = min(until_ms, outcome.expires_ms)
            known = (until_ms, outcome)
            self._remember(mark, known)
        outcome = known[1]
        if isinstance(outcome, NotAuthenticated):
            raise NotAuthenticated(str(outcome))
        return outcome

    def _remember(
        self, mark: bytes, known: tuple[int, Principal | None | NotAuthenticated]
    ) -> None:
        # Refusals are kept too: a client that tries the same again does not cost a call.
        if self._settings.cache_ms:
            self._known[mark] = known
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)

    def _recheckd(
        self, answer: _Answer, credentials: Credentials
    ) -> Principal | None | NotAuthenticated:
        if answer.result == "ignore":
            return None
        if answer.result != "allow":
            return NotAuthenticated("wrong user or password")
        name = answer.user or credentials.username
        if not name:
            raise NoAnswer("it names no user")
        return Principal(
            name,
            roles=tuple(sorted(set(answer.roles))),
            rules=_rules(answer.rules),
            expires_ms=(
                None if answer.expires_in_ms is None else self._now_ms() + answer.expires_in_ms
            ),
        )

    async def close(self) -> None:
        """Close the HTTP connections."""
        await self._calls.close()


def _values(credentials: Credentials) -> dict[str, str]:
    """What the fields of templates stand for."""
    return {
        "username": credentials.username or "",
        "password": (credentials.password or b"").decode("utf-8", "replace"),
        "token": credentials.token or "",
        "client_id": credentials.client_id,
        "peer_host": credentials.peer_host,
        "protocol": credentials.protocol,
        "listener": credentials.listener,
        "certificate_subject": credentials.certificate_subject or "",
    }


_NOTHING: Final = Rule(("any",), ("all",), "nothing", "*")
"""Stands for an empty list of rules: its bearer may do nothing."""


def _rules(rules: list[_AnswerRule] | None) -> tuple[Rule, ...]:
    if rules is None:
        return ()
    return tuple(rule for each in rules for rule in each.rules()) or (_NOTHING,)
