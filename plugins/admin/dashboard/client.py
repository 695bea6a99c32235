"""Asks the admin API, as the one who is logged in."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote
from weakref import WeakValueDictionary

import aiohttp
from yarl import URL

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.plugins.admin.dashboard.options import Credentials, DashboardOptions
from lakemq.plugins.admin.proxies import KNOWN_BY

ANSWER_MAX_BYTES: Final = 32 * 1024 * 1024
"""More than the largest answer of the API (records of 16 MiB, as base64)."""
_TIMEOUT_S: Final = 30.0
_AT_ONCE: Final = 32
"""Requests under way at the API."""
_AT_ONCE_OF_ONE: Final = 8
"""The same of one user: who opens many slow pages waits, and others do not."""
Answer = Any
"""JSON."""


class ApiProblem(LakeMQError):
    """The API refused, or did not answer."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        """`status`: of HTTP; 503 for no answer. `code`: stable, `NOT_AUTHORIZED`."""
        super().__init__(detail)
        self.status = status
        self.problem_code = code
        self.detail = detail


class AdminClient:
    """One connection pool to one node's admin API, which answers for the whole cluster."""

    def __init__(self, options: DashboardOptions) -> None:
        self._options = options
        self._http: aiohttp.ClientSession | None = None
        self._rooms = WeakValueDictionary[tuple[str, str], asyncio.Semaphore]()
        """Of users whose requests are under way."""

    async def open(self) -> None:
        """Call it before the first question."""
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=_AT_ONCE, ssl=self._options.api_tls or True),
        )

    async def close(self) -> None:
        """Close its connections."""
        if self._http is not None:
            await self._http.close()

    async def get(
        self, who: Credentials, path: str, query: Mapping[str, str] | None = None
    ) -> Answer:
        """`path`: behind `/api/v1/`. Raises ApiProblem."""
        return await self.call(who, "GET", path, query)

    async def call(
        self,
        who: Credentials,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> Answer:
        """Ask or change. None: an answer without a body. Raises ApiProblem."""
        headers = {"Accept": "application/json", **self._login(who)}
        data = None
        if method != "GET":
            headers["Content-Type"] = "application/json"
            data = json.dumps(body or {}).encode()
        url = f"{self._options.api}/api/v1/{path}"
        # By name and password: who guesses passwords takes nothing from who knows it.
        room = self._rooms.setdefault(
            (who.username, who.password), asyncio.Semaphore(_AT_ONCE_OF_ONE)
        )
        async with room:
            text = await self._bytes(method, url, headers, query, data)
        try:
            return json.loads(text) if text else None
        except (ValueError, RecursionError):
            raise ApiProblem(
                502, "UNKNOWN", f"what answers at {self._options.api} is no admin API"
            ) from None

    def _login(self, who: Credentials) -> dict[str, str]:
        headers = {"X-Forwarded-For": who.host} if who.host else {}
        if self._options.known_by:
            headers[KNOWN_BY] = self._options.known_by
        if who.username:
            login = base64.b64encode(f"{who.username}:{who.password}".encode())
            headers["Authorization"] = f"Basic {login.decode()}"
        return headers

    async def _bytes(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        query: Mapping[str, str] | None,
        data: bytes | None,
    ) -> bytes:
        assert self._http is not None
        # Encoded already: a topic named `a/b` is one part of the path.
        target = URL(url, encoded=True).with_query(query)
        try:
            async with self._http.request(
                method, target, headers=headers, data=data, allow_redirects=False
            ) as answer:
                text = await _bounded(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or "no answer in time"
            raise ApiProblem(
                503, "UNAVAILABLE", f"the admin API at {self._options.api} does not answer: {why}"
            ) from None
        if answer.status >= 300:
            raise _problem(answer.status, text)
        return text


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_chunked(256 * 1024):
        size += len(part)
        if size > ANSWER_MAX_BYTES:
            raise ApiProblem(502, "TOO_LARGE", f"the answer has more than {ANSWER_MAX_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _problem(status: int, text: bytes) -> ApiProblem:
    try:
        found = json.loads(text)
        return ApiProblem(status, str(found["code"]), str(found["detail"]))
    except (ValueError, TypeError, KeyError):
        return ApiProblem(status, "UNKNOWN", f"the admin API answered {status}")


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")
