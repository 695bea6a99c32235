"""Sends one request again and again until it is taken. Edge: speaks HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import ConfigError
from lakemq.plugins.webhook.config import HookSettings
from lakemq.plugins.webhook.payload import (
    Post,
    Verdict,
    retry_after_s,
    secret_of,
    signature_of,
    verdict_of,
)

_log = logging.getLogger(__name__)
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_rng: Final = random.Random()


@dataclass(slots=True)
class Counters:
    """Of one webhook, since the start."""

    records: int = 0
    """Records that the service has taken."""
    failures: int = 0
    """Requests that were not answered with 2xx."""
    skipped: int = 0
    """Records that were refused and left out."""
    lost: int = 0
    """Records that were gone before they were read."""


class Sender:
    """The service of one webhook."""

    def __init__(
        self,
        settings: HookSettings,
        counters: Counters,
        environment: Mapping[str, str] = os.environ,
        now_s: Callable[[], int] = lambda: time.time_ns() // 1_000_000_000,
    ) -> None:
        """Raises ConfigError: a variable is not there, or holds no secret."""
        self._settings, self._counters, self._now_s = settings, counters, now_s

        def value_of(name: str) -> str:
            if name not in environment:
                raise ConfigError(
                    f"plugin webhook: {settings.name}: environment variable {name} is not set"
                )
            return environment[name]

        self._headers = {
            name: _VARIABLE.sub(lambda match: value_of(match.group(1)), text)
            for name, text in settings.headers.items()
        }
        self._secret = b""
        if settings.secret_env:
            try:
                self._secret = secret_of(value_of(settings.secret_env))
            except ValueError:
                self._secret = b""
            if not self._secret:
                raise ConfigError(
                    f"plugin webhook: {settings.name}: environment variable "
                    f"{settings.secret_env} holds no secret (whsec_ and base64, or a text)"
                )
        self._session: aiohttp.ClientSession | None = None
        self._turns = asyncio.Semaphore(settings.calls_max)
        self._fault = ""

    async def send(self, post: Post) -> None:
        """Returns when the request was taken, or left out as the settings say."""
        settings = self._settings
        backoff = Backoff(settings.retry_min_ms, settings.retry_max_ms, _rng.random)
        while True:
            verdict, said, pause_s = await self._try(post)
            if verdict is Verdict.TAKEN:
                self._counters.records += post.records
                self._fault = ""
                return
            self._counters.failures += 1
            self._tell(said)
            if verdict is Verdict.REFUSED and settings.refused == "skip":
                self._counters.skipped += post.records
                _log.error(
                    "webhook %s: %d records are left out: %s was refused with %s",
                    settings.name, post.records, post.request_id, said,
                )  # fmt: skip
                return
            await asyncio.sleep(max(backoff.next_s(), pause_s))

    async def _try(self, post: Post) -> tuple[Verdict, str, float]:
        """The verdict, what was said, and how long the service asks to wait (s)."""
        timeout_s = self._settings.timeout_ms / 1000
        try:
            # The time begins with the call: waiting for a turn is not the service's fault.
            async with self._turns, asyncio.timeout(timeout_s):
                response = await self._open().post(
                    self._settings.url,
                    data=post.body,
                    headers=self._headers_of(post),
                    allow_redirects=False,
                )
                # What the service says beside the status is not read.
                response.release()
            asked = response.headers.get("Retry-After")
            pause_s = retry_after_s(asked, self._settings.retry_max_ms / 1000)
            return verdict_of(response.status), f"status {response.status}", pause_s
        except TimeoutError:
            return Verdict.FAILED, f"nothing within {self._settings.timeout_ms} ms", 0.0
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Only the type: the text may hold the URL with a secret in its query.
            return Verdict.FAILED, type(error).__name__, 0.0

    def _headers_of(self, post: Post) -> dict[str, str]:
        timestamp_s = self._now_s()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "lakemq-webhook",
            **self._headers,
            "webhook-id": post.request_id,
            "webhook-timestamp": str(timestamp_s),
        }
        if self._secret:
            headers["webhook-signature"] = signature_of(
                self._secret, post.request_id, timestamp_s, post.body
            )
        return headers

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Cookies of one answer are nothing to send with the next request.
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    def _tell(self, fault: str) -> None:
        if fault != self._fault:
            self._fault = fault
            _log.warning(
                "webhook %s: not taken: %s; sent again until it is", self._settings.name, fault
            )

    async def close(self) -> None:
        """Close the HTTP connections."""
        if self._session is not None:
            await self._session.close()
