"""Questions to a web service: templates, a bounded number at a time, answers of bounded size."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ValidationError

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.api.settings import Section
from lakemq.broker_core.security.settings import HttpService

if TYPE_CHECKING:
    import aiohttp

AnswerType = TypeVar("AnswerType", bound=Section)
ANSWER_MAX_BYTES: Final = 256 * 1024
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_FIELD: Final = re.compile(r"\{([a-z_]+)\}")


class NoAnswer(Exception):
    """The service said nothing of use."""


class Templates:
    """Named texts with fields in braces. What is not a known field stays as it is written, and what
    is filled in is never looked at again."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)
        self.fields = frozenset(name for text in texts.values() for name in _FIELD.findall(text))
        """Names that stand in the texts."""

    def filled(self, values: Mapping[str, str]) -> dict[str, str]:
        """The templates with placeholders replaced by values."""
        return {
            name: _FIELD.sub(lambda match: values.get(match.group(1), match.group()), text)
            for name, text in self._texts.items()
        }


class HttpCalls:
    """One web service."""

    def __init__(
        self, settings: HttpService, where: str, environment: Mapping[str, str] = os.environ
    ) -> None:
        """`where` names the setting. Raises ConfigError: a variable is not there."""
        self._settings = settings
        self._headers = {
            name: _VARIABLE.sub(lambda match: _variable(match.group(1), environment, where), text)
            for name, text in settings.headers.items()
        }
        self._session: aiohttp.ClientSession | None = None
        self._turns = asyncio.Semaphore(settings.calls_max)

    async def ask(self, body: dict[str, str]) -> tuple[int, bytes]:
        """Status and body of the answer, which `answer_of` takes. Raises NoAnswer."""
        # Here: it is among the dearest imports, and hardly a broker asks a web service.
        import aiohttp

        settings = self._settings
        how: dict[str, Any] = {"params": body} if settings.method == "GET" else {"json": body}
        try:
            # The time begins with the call: waiting for a turn is not the service's fault.
            async with self._turns, asyncio.timeout(settings.timeout_ms / 1000):
                session = self._open()
                async with session.request(
                    settings.method,
                    settings.url,
                    headers=self._headers,
                    allow_redirects=False,
                    **how,
                ) as response:
                    # One byte more than allowed shows that the answer is too large without reading
                    # all of it.
                    data = await response.content.read(ANSWER_MAX_BYTES + 1)
                    while len(data) <= ANSWER_MAX_BYTES and not response.content.at_eof():
                        data += await response.content.read(ANSWER_MAX_BYTES + 1 - len(data))
                    return response.status, data
        except TimeoutError:
            raise NoAnswer(f"nothing within {settings.timeout_ms} ms") from None
        except (aiohttp.ClientError, OSError) as error:
            # Only the type: the text may hold the URL with a password in its query.
            raise NoAnswer(type(error).__name__) from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession()
        return self._session

    async def close(self) -> None:
        """Close the HTTP connections."""
        if self._session is not None:
            await self._session.close()


def answer_of(kind: type[AnswerType], status: int, data: bytes) -> AnswerType:
    """An answer with the field `result`: 401 and 403 are `deny`, 204 is `allow`, 200 comes with
    JSON. Raises NoAnswer for anything else."""
    if status in (401, 403):
        return kind.model_validate({"result": "deny"})
    if status == 204:
        return kind.model_validate({"result": "allow"})
    if status != 200 or len(data) > ANSWER_MAX_BYTES:
        raise NoAnswer(f"status {status}, {len(data)} bytes")
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise NoAnswer(_complaint_of(error)) from None


def _complaint_of(error: ValidationError) -> str:
    """What is wrong with an answer, without what it says."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place or 'the answer'}: {first['type']}"


def _variable(name: str, environment: Mapping[str, str], where: str) -> str:
    if name not in environment:
        raise ConfigError(f"{where}: there is no environment variable {name}")
    return environment[name]
