"""An issuer's keys by URL (RFC 7517), or found by OpenID Connect Discovery 1.0, kept up to date.

A broker starts without them when the issuer is away; what it has fetched once stays in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError
from lakemq.broker_core.api.hosts import is_protected
from lakemq.broker_core.security.http_calls import ANSWER_MAX_BYTES, HttpCalls, NoAnswer
from lakemq.broker_core.security.settings import HttpService, JwtSettings

T = TypeVar("T")
Ask = Callable[[str], Awaitable[tuple[int, bytes]]]
"""GET of a URL: status and body. Raises NoAnswer."""
_log = logging.getLogger(__name__)
RENEW_EVERY_S: Final = 10.0
"""How often tokens that name an unknown key can make the issuer be asked at most (s)."""
_RETRY_MAX_S: Final = 60.0
_DOCUMENT: Final = "/.well-known/openid-configuration"


class FetchedKeys(Generic[T]):
    """The keys of one issuer; empty until they were fetched first."""

    def __init__(
        self,
        settings: JwtSettings,
        read: Callable[[bytes], Sequence[T]],
        *,
        ask: Ask | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` understands a JSON Web Key Set. Raises InvalidRequest."""
        self._settings, self._read, self._now_s = settings, read, now_s
        self._ask = ask or self._get
        self._keys: Sequence[T] = ()
        self._data = b""
        self._fault = ""
        self._asked_s = -RENEW_EVERY_S
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def current(self) -> Sequence[T]:
        """The keys that were fetched last."""
        return self._keys

    async def renewed(self, known: Sequence[T]) -> bool:
        """Whether there are other keys than `known` now. Asks the issuer, or waits while it is
        asked, but not again within RENEW_EVERY_S: who makes up key ids causes no traffic."""
        async with self._lock:
            if self._keys is known and self._now_s() - self._asked_s >= RENEW_EVERY_S:
                await self._fetch()
        return self._keys is not known

    async def start(self) -> None:
        """Fetch the keys, and go on doing so in the background. An issuer that does not answer is
        no reason not to start."""
        async with self._lock:
            await self._fetch()
        self._task = asyncio.create_task(self._refresh())

    async def close(self) -> None:
        """End the background task."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _refresh(self) -> None:
        pause_s = 1.0
        while True:
            if self._fault:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_MAX_S)
            else:
                pause_s = 1.0
                await asyncio.sleep(self._settings.refresh_ms / 1000)
            async with self._lock:
                await self._fetch()

    async def _fetch(self) -> None:
        url = self._settings.jwks_url
        try:
            if not url:
                url = self._settings.issuer.removesuffix("/") + _DOCUMENT
                url = self._key_set_of(await self._answer(url))
            data = await self._answer(url)
            if data != self._data:
                # Only what differs is another object: tokens that were verified stay so.
                self._keys, self._data = self._read(data), data
                _log.info("%s: %d keys", url, len(self._keys))
            self._fault = ""
        except (NoAnswer, LakeMQError) as error:
            self._report(f"{url}: {error}")
        finally:
            self._asked_s = self._now_s()

    def _key_set_of(self, data: bytes) -> str:
        """`jwks_uri` of a discovery document, which must be this issuer's own (section 4.3)."""
        try:
            document = json.loads(data)
            issuer, url = document["issuer"], document["jwks_uri"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InvalidRequest("not a discovery document with issuer and jwks_uri") from None
        if issuer != self._settings.issuer:
            raise InvalidRequest(f"it is the document of issuer {str(issuer)!r:.200}")
        if not isinstance(url, str) or not is_protected(url):
            raise InvalidRequest(f"its jwks_uri {url!r:.200} is not https")
        return url

    async def _answer(self, url: str) -> bytes:
        status, data = await self._ask(url)
        if status != 200 or len(data) > ANSWER_MAX_BYTES:
            raise NoAnswer(f"status {status}, {len(data)} bytes")
        return data

    async def _get(self, url: str) -> tuple[int, bytes]:
        service = HttpService(
            kind="http", url=url, method="GET", timeout_ms=self._settings.timeout_ms
        )
        calls = HttpCalls(service, "security.authenticators: jwt")
        try:
            return await calls.ask({})
        finally:
            await calls.close()

    def _report(self, fault: str) -> None:
        if fault != self._fault:
            stays = "those of before stay in use" if self._keys else "no token is taken until then"
            _log.warning("could not fetch an issuer's keys, %s: %s", stays, fault)
        self._fault = fault
