"""Calls that go to a coordinator and follow it to other nodes, for asyncio."""

from __future__ import annotations

import time
from asyncio import sleep
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from lakemq.broker_core.api.errors import LakeMQError, NotLeader, Unavailable
from lakemq.plugins.native.sdk.net.routes import Heard, Routes
from lakemq.plugins.native.sdk.net.sequencing import backoff_s

StubT = TypeVar("StubT")
ATTEMPT_S: Final = 3.0
"""Of a call in a cluster: the node may stand still, and another one coordinate."""


class CoordinatorCalls(Generic[StubT]):
    """Where a coordinator is, as far as errors have told. The guide is asked first, and again after
    a failure: it names the coordinator if that is another node."""

    def __init__(self, routes: Routes, stub_of: Callable[[str], StubT], address: str = "") -> None:
        """`stub_of`: calls on the node at an address; empty: on the guide. `address`: of the node
        that is asked first."""
        self.address = address
        """`host:port`; empty: the guide."""
        self.routes = routes
        self._stub_of = stub_of
        self._epoch = 0

    @property
    def stub(self) -> StubT:
        """Calls on the coordinator, as far as known."""
        if self.routes.view.is_fenced(self.address):
            self.address = ""  # another node has taken over, or soon will
        return self._stub_of(self.address)

    @property
    def alone(self) -> bool:
        """Whether there is no other node, as far as known: none can have taken over."""
        return not self.address and len(self.routes.view.addresses()) < 2

    async def log_in(self) -> None:
        """Get a token of the node that `stub` leads to, where one is needed: streams can't."""
        routes = self.routes
        channel = routes.channel(self.address) if self.address else routes.guide.current
        login = getattr(channel, "login", None)
        if login is not None:
            await login.ensure()

    def failed(self, error: LakeMQError) -> bool:
        """A call or stream on `stub` has failed; whether another node is to be asked at once."""
        former, self.address = self.address, ""
        # Of several nodes that were asked one may be behind: leader epochs only grow.
        if isinstance(error, NotLeader) and error.address and error.epoch >= self._epoch:
            self.address, self._epoch = error.address, error.epoch
        return self.address not in ("", former)

    async def attempt(
        self, method: str, request: Any, timeout_s: float, attempt_s: float = ATTEMPT_S
    ) -> Any:
        """The answer of the coordinator, as far as known. A retriable error may be of another node,
        which the next attempt leaves. `attempt_s`: as long where there are other nodes, and the one
        that is asked is not fenced meanwhile."""
        limit_s = timeout_s if self.alone else min(attempt_s, timeout_s)
        try:
            call = getattr(self.stub, method)(request, timeout=limit_s)
            return await Heard(self.routes, self.address).answer(call)
        except LakeMQError as error:
            if error.retriable:
                self.failed(error)
            raise

    async def call(self, method: str, request: Any, timeout_s: float) -> Any:
        """The coordinator's answer. What the guide is unavailable for is raised at once."""
        deadline_s = time.monotonic() + timeout_s
        for pause_s in backoff_s():
            asked = self.address
            try:
                return await self.attempt(method, request, timeout_s)
            except (NotLeader, Unavailable) as error:
                elsewhere = isinstance(error, NotLeader) or asked
                if not elsewhere or time.monotonic() + pause_s > deadline_s:
                    raise
            if self.address in ("", asked):  # nothing new was learned
                await sleep(pause_s)
        raise AssertionError("backoff never ends")

    async def patient(
        self, method: str, request: Callable[[], Any], timeout_s: float, attempt_s: float
    ) -> Any:
        """The coordinator's answer, asked for again as long as an error may pass. `request()` makes
        what is sent, for each attempt."""
        deadline_s = time.monotonic() + timeout_s
        for pause_s in backoff_s():
            asked = self.address
            try:
                return await self.attempt(method, request(), timeout_s, attempt_s)
            except LakeMQError as error:
                # A pause that would end behind the deadline is not begun: the error is known now.
                if not error.retriable or time.monotonic() + pause_s > deadline_s:
                    raise
            if self.address in ("", asked):  # nothing new was learned
                await sleep(pause_s)
        raise AssertionError("backoff never ends")
