"""The asyncio client behind a blocking one, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from lakemq.broker_core.api.errors import (
    OutcomeUnknown,
)
from lakemq.broker_core.api.types import Acks, Compression
from lakemq.plugins.native.sdk.blocking.portal import Portal
from lakemq.plugins.native.sdk.client.client import Client
from lakemq.plugins.native.sdk.net.addresses import Bootstrap
from lakemq.plugins.native.sdk.net.login import Login
from lakemq.plugins.native.sdk.net.tls import Tls
from lakemq.plugins.native.sdk.producer.accumulator import BATCH_MAX_BYTES
from lakemq.plugins.native.sdk.producer.producer import Producer
from lakemq.plugins.native.sdk.telemetry import Telemetry

_R = TypeVar("_R")
_EXIT_S: Final = 2.0
_open: weakref.WeakSet[OpenedClient] = weakref.WeakSet()
"""To be closed when the interpreter ends."""


class OpenedClient:
    """The event loop of a blocking client, and what lives on it. It knows nothing of the blocking
    client, so that one that is not closed can be collected."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        timeout_s: float,
        tls: Tls | None,
        login: Login | None,
        rack: str,
        telemetry: Telemetry | None,
    ) -> None:
        self.portal = Portal()
        self._timeout_s = timeout_s
        self._producers: dict[tuple[Acks, Compression], Producer] = {}
        self._making = asyncio.Lock()
        login = login or Login()

        async def enter() -> Client:
            client = Client(
                bootstrap,
                timeout_s=timeout_s,
                tls=tls,
                token=login.token,
                username=login.username,
                password=login.password,
                mechanism=login.mechanism,
                rack=rack,
                telemetry=telemetry,
            )
            try:
                return await client.__aenter__()
            except BaseException:
                await client.close()
                raise

        try:
            self.client = self.portal.run(enter)
        except BaseException:
            self.portal.close(_nothing)
            raise
        _open.add(self)

    def end(self, wait_s: float | None = None) -> None:
        """Close the client and end the thread; waits for that, at most `wait_s`."""
        self.portal.close(self.client.close, wait_s)

    async def produce(
        self,
        acks: Acks,
        compression: Compression,
        send: Callable[[Producer], Coroutine[Any, Any, _R]],
    ) -> _R:
        """`send` with the producer of that kind. OutcomeUnknown: no answer in time."""
        producer = await self._producer(acks, compression)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await send(producer)
        except TimeoutError:
            why = f": {producer.last_failure}" if producer.last_failure else ""
            raise OutcomeUnknown(
                f"no answer in {self._timeout_s} s; the records may or may not be stored{why}"
            ) from None

    async def _producer(self, acks: Acks, compression: Compression) -> Producer:
        """One for all threads; another once it has failed for good."""
        async with self._making:
            found = self._producers.get((acks, compression))
            if found is None or found.failed is not None:
                if found is not None:
                    await found.abandon()
                found = self._producers[acks, compression] = await self.client.producer(
                    acks=acks,
                    compression=compression,
                    batch_max_bytes=BATCH_MAX_BYTES,
                    delivery_timeout_ms=int(self._timeout_s * 1000),
                )
            return found


async def _nothing() -> None:
    """A client that was not made has nothing to close."""


@atexit.register
def _close_all() -> None:
    """Of programs that do not close their clients: daemon threads would be stopped anywhere."""
    for each in list(_open):
        each.end(_EXIT_S)
