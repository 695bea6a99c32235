"""Exclusive subscriptions of this node, claimed at the homes of their filters. Edge: awaits homes.

A home takes the claim for one of a session (`frames.Claim`) whose client id is the filter's name,
and whose user is the client. So a home of an older build grants it as well.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.plugins.mqtt.homes import frames
from lakemq.plugins.mqtt.homes.frames import Code, Outcome
from lakemq.plugins.mqtt.homes.owner import Homes
from lakemq.plugins.mqtt.homes.table import Claim, Owner
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.routing.sessions.exclusive import USER_KIND, Answer, name_of
from lakemq.plugins.mqtt.state.questions import ExclusiveClaim
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot
from lakemq.plugins.mqtt.wire.reasons import Reason

_log: Final = logging.getLogger(__name__)
CLAIM_WAIT_S: Final = 5.0
"""How long a client waits for SUBACK while the home can't be reached."""
_CALL_S: Final = 3.0
_RETRY_FIRST_MS: Final = 20
_RETRY_MAX_MS: Final = 500
_rng: Final = random.Random()


class ExclusiveClaims:
    """Lives on the event loop."""

    def __init__(
        self,
        hub: Hub,
        homes: Homes,
        begin: Callable[[Coroutine[Any, Any, None]], object],
        after: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        """As for `SessionOwner`."""
        self._hub = hub
        self._homes = homes
        self._begin = begin
        self._after = after
        self._now_ms = now_ms
        self._claiming = False

    async def answer(self, claim: ExclusiveClaim, then: Callable[[int], None]) -> None:
        """Have a home answer a client that subscribes, then call back."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random)
        deadline = loop.time() + CLAIM_WAIT_S
        (outcome,) = await self._ask([claim])
        while outcome.code in (Code.FAILED, Code.SUPERSEDED) and loop.time() < deadline:
            await asyncio.sleep(backoff.next_s())
            (outcome,) = await self._ask([claim])
        exclusive = self._hub.exclusive
        exclusive.answered(claim, _answer(outcome))
        then(self._now_ms())
        # The client may have gone, or lost the right to subscribe.
        epoch = exclusive.left_over(claim)
        if epoch:
            self._hub.exclusive_ended(name_of(claim.topic_filter), epoch)
        self._after()

    def tick(self) -> None:
        """Call about once a second, and when sessions have come: claims what they came with."""
        for name, epoch in self._hub.exclusive.not_claimed(self._now_ms()).items():
            self._hub.exclusive_ended(name, epoch)
        if not self._claiming and self._hub.exclusive.unclaimed():
            self._claiming = True
            self._begin(self._claim_all())

    async def _claim_all(self) -> None:
        try:
            claims = self._hub.exclusive.unclaimed()
            for start in range(0, len(claims), frames.ROWS_MAX):
                some = claims[start : start + frames.ROWS_MAX]
                for claim, outcome in zip(some, await self._ask(some), strict=True):
                    self._take_up(claim, outcome)
        finally:
            self._claiming = False
        self._after()

    def _take_up(self, claim: ExclusiveClaim, outcome: Outcome) -> None:
        held = self._hub.exclusive.held.get(claim.topic_filter)
        here = held is not None and held.session.client_id == claim.client_id
        if outcome.code is Code.DONE and held is not None and here:
            held.epoch = max(held.epoch, outcome.epoch)
        elif outcome.code is Code.DONE:
            self._hub.exclusive_ended(name_of(claim.topic_filter), outcome.epoch)
        elif outcome.code in (Code.ANOTHERS, Code.FULL) and held is not None and here:
            text = "session of %r has lost its subscription to %s: another client has it"
            _log.warning(text, claim.client_id, held.text, extra={"client": claim.client_id})
            self._hub.unsubscribe(held.session, held.text)
            held.session.touch()

    async def _ask(self, claims: list[ExclusiveClaim]) -> list[Outcome]:
        """Outcomes, in the order of claims."""
        groups: dict[str, list[int]] = {}
        for index, one in enumerate(claims):
            groups.setdefault(self._home_of(name_of(one.topic_filter)), []).append(index)
        outcomes = [Outcome(Code.FAILED)] * len(claims)

        async def ask(node: str, indexes: list[int]) -> None:
            asked = frames.claims_bytes([_claim(claims[each]) for each in indexes])
            try:
                answer = await self._homes.ask(node, asked, _CALL_S)
                found = frames.read_outcomes(answer, len(indexes))
            except (LakeMQError, BadSnapshot) as error:
                _log.info("%s grants no exclusive subscriptions now: %s", node, error)
                return
            for index, outcome in zip(indexes, found, strict=True):
                outcomes[index] = outcome

        await asyncio.gather(*(ask(*each) for each in groups.items() if each[0]))
        return outcomes

    def _home_of(self, name: str) -> str:
        try:
            return self._homes.home_of(name)
        except LakeMQError:
            return ""


def _claim(claim: ExclusiveClaim) -> Claim:
    user = (USER_KIND, claim.client_id)
    # Clean: there is no state to be handed over. Not replacing: who has it keeps it.
    return Claim(name_of(claim.topic_filter), Owner("", 0), user, True, False, False)


def _answer(outcome: Outcome) -> Answer:
    if outcome.code is Code.DONE:
        return Answer(outcome.epoch)
    if outcome.code is Code.ANOTHERS:
        return Answer(0, "another client has it for itself")
    if outcome.code is Code.FULL:
        return Answer(0, "too many exclusive subscriptions")
    why = "the node that knows who has it can't be reached"
    return Answer(0, why, Reason.IMPLEMENTATION_ERROR)
