"""What the gRPC services are made of: rows of a table in place of a method for every command.

A service of gRPC is a class whose methods are either rows, `name = writes(...)`, `watches(...)`, or
written out where they are of a kind of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from lakemq.meta_service.api.types import MetaStatus
from lakemq.meta_service.catalog.command_codec import Command, Header
from lakemq.meta_service.catalog.results import Result, value_of
from lakemq.meta_service.catalog.tables import Row
from lakemq.meta_service.core.gateway import Gateway
from lakemq.meta_service.proto import meta_pb2 as pb
from lakemq.meta_service.server.failures import Context, streaming, unary

ANSWER_MAX_BYTES: Final = 3 * 1024 * 1024
"""Keys and values in one answer; gRPC's own limit is 4 MiB."""
PROGRESS_S: Final = 1.0
"""A quiet watch hears the current revision this often."""

Shared = tuple[Gateway, Callable[[], MetaStatus], Callable[[], str]]
"""What every service is made of: gateway, status, address of the leader."""


class Service:
    """What the services share."""

    def __init__(
        self,
        gateway: Gateway,
        status: Callable[[], MetaStatus],
        leader_address: Callable[[], str],
    ) -> None:
        self._gateway = gateway
        self._status = status
        self.leader_address = leader_address

    async def _propose(self, command: Command, once: pb.Once | None) -> Result:
        result = await self._gateway.propose(command, header_of(once))
        value_of(result)
        return result

    async def _fresh(self, stale: bool = False) -> None:
        if not stale:
            await self._gateway.barrier()

    async def _changes(
        self, prefix: bytes, start_revision: int
    ) -> AsyncGenerator[tuple[int, bytes | None, bytes | None, bool], None]:
        """(revision, key, value or None for a deletion, last of its revision) of the catalog's
        own keys; (revision, None, None, True): progress, all up to the revision was given."""
        batches = self._gateway.hub.watch_revisions(
            prefix, start_revision, with_reserved=True, progress_s=PROGRESS_S
        )
        async with contextlib.aclosing(batches):
            async for revision, events in batches:
                for number, (key, value) in enumerate(events, 1):
                    yield revision, key, value, number == len(events)
                if not events:
                    yield revision, None, None, True

    def _page(
        self,
        prefix: bytes,
        after: bytes,
        *,
        exact: bool = False,
        wanted: set[bytes] | None = None,
    ) -> tuple[list[tuple[bytes, Row]], bool]:
        """Rows behind `after` that fit one answer, and whether there are more. `exact`: only the
        row whose key is the prefix. `wanted`: only these keys; empty: all."""
        found: list[tuple[bytes, Row]] = []
        size = 0
        for key, row in self._gateway.cache.scan(prefix, after=after):
            if exact and key != prefix:
                break
            if wanted and key not in wanted:
                continue
            # An estimate on the safe side: the message of a row may be larger than the row.
            size += 2 * (len(key) + len(row.value)) + 40
            # One row at least, whatever its size: a page without rows would end the listing.
            if found and size > ANSWER_MAX_BYTES:
                return found, True
            found.append((key, row))
        return found, False


def header_of(once: pb.Once | None) -> Header:
    """Who sends a command, from its message; none: it is applied every time it comes."""
    if once is not None and once.client_id:
        return Header(once.client_id, once.sequence, once.acknowledged)
    return Header()


# ------------------------------------------------------------ rows


def _revision(request: Any, result: Result) -> pb.WriteResponse:
    return pb.WriteResponse(revision=result.revision)


def writes(
    command_of: Callable[[Any, Any], Command],
    answer: Callable[[Any, Result], Any] = _revision,
) -> Any:
    """A unary method that proposes a command.

    `command_of(service, request)` may raise MetaError; `answer(request, result)` gets what the
    command did. The method's types are those of the servicer that it belongs to.
    """

    @unary
    async def write(self: Any, request: Any, context: Context) -> Any:
        once = getattr(request, "once", None)
        return answer(request, await self._propose(command_of(self, request), once))

    return write


def watches(
    prefix: bytes, change_type: Callable[..., Any], fill: Callable[[Any, bytes, bytes | None], None]
) -> Any:
    """A method that streams changes of rows with that prefix, and how far it has come.

    `fill(change, key, value)` completes a change that has its revision; value None: deleted.
    """

    @streaming
    async def watch(self: Any, request: Any, context: Context) -> AsyncGenerator[Any]:
        changes = self._changes(prefix, request.start_revision)
        async with contextlib.aclosing(changes):
            async for revision, key, value, last in changes:
                change = change_type(revision=revision, last=last)
                if key is not None:
                    fill(change, key, value)
                yield change

    return watch
