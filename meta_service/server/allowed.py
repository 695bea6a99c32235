"""Which certificates a member serves. The members' authority signed all that can connect; of those
it serves nodes and operators, known by the names in their certificates, and no other caller.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc

from lakemq.meta_service.api.errors import InvalidArgument, MetaError, Overloaded, PermissionDenied
from lakemq.meta_service.api.reading_turns import ReadingTurns
from lakemq.meta_service.server.failures import Context, abort
from lakemq.meta_service.server.operator_calls import Observe, observed

_TURNS: Final = 2
"""Requests of callers without certificates that are read at a time, each of up to 4 MiB."""
_WAITING_MAX: Final = 1024
_WAITING_PER_PEER_MAX: Final = 256
_KNOWN_MAX_S: Final = 30.0
_UNKNOWN_MAX_S: Final = 1.0
"""How long the first message of a call may take (s), of a caller without a certificate."""
_SHOWN_MAX: Final = 200
"""Characters of a certificate's names that are repeated in an answer."""


class Allowed:
    """Nodes: members of the group, registered brokers, and who may become one (`meta.nodes`), by
    subject alternative name. Operators (`meta.operators`): by that, or by common name."""

    def __init__(
        self, operators: Sequence[str], nodes: Sequence[str], is_known: Callable[[str], bool]
    ) -> None:
        """`is_known`: whether that is the id of a member or of a registered broker."""
        self._operators = frozenset(operators)
        self._nodes = frozenset(name for name in nodes if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in nodes if name.endswith("*"))
        self._is_known = is_known

    def is_node(self, name: str) -> bool:
        """Whether a node of that id may be, or become, a member."""
        return name in self._nodes or name.startswith(self._prefixes) or self._is_known(name)

    def check(self, names: Sequence[str], common_names: Sequence[str]) -> None:
        """`names`: subject alternative names. Raises PermissionDenied."""
        if any(name in self._operators or self.is_node(name) for name in names):
            return
        if not self._operators.isdisjoint(common_names):
            return
        shown = ", ".join(repr(name) for name in dict.fromkeys([*names, *common_names]))
        raise PermissionDenied(
            f"the certificate of {shown[:_SHOWN_MAX] or 'an unnamed peer'} names neither a node of "
            "this cluster (a member, a registered broker, one of meta.nodes) nor one of "
            "meta.operators"
        )


def names_of(context: Context) -> tuple[list[str], list[str]] | None:
    """(subject alternative names, common names) of the caller's verified certificate; None: it
    speaks plain text, which is for loopback only."""
    peer = context.auth_context()
    # gRPC asks for a certificate on every TLS connection here, so TLS without one does not come
    # this far.
    if b"ssl" not in peer.get("transport_security_type", ()):
        return None
    alternative, common = (
        [value.decode("utf-8", "replace") for value in peer.get(kind, ())]
        for kind in ("x509_subject_alternative_name", "x509_common_name")
    )
    return alternative, common


class CertificateCheck(grpc.aio.ServerInterceptor):
    """Asks `Allowed` before any method of any service runs, and before a single request is read:
    it is taken as a stream of one message, of which gRPC holds no more than the stream's window
    until it is read. Without certificates, which is so on loopback alone, few calls have
    their first message read at a time, and each connection has its turn."""

    def __init__(self, allowed: Allowed, observe: Observe | None = None) -> None:
        """`observe`: told what operators change."""
        self._allowed = allowed
        self._observe = observe
        self._turns = ReadingTurns(
            _TURNS, waiting_max=_WAITING_MAX, waiting_per_peer_max=_WAITING_PER_PEER_MAX,
            refusal=lambda: Overloaded("too many requests are on their way; try again"),
        )  # fmt: skip
        self._guarded: dict[str, Any] = {}

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Put the check before a method; the guarded handler is made once for each method."""
        handler = await continuation(details)
        if handler is None:
            return None
        guarded = self._guarded.get(details.method)
        if guarded is None:
            guarded = self._guarded[details.method] = self._guard(handler, details.method)
        return guarded

    def _guard(self, handler: Any, method: str) -> Any:
        """The same handler, behind the check."""
        coders = handler.request_deserializer, handler.response_serializer
        # gRPC would read a single request before the handler runs; a stream is read by this check,
        # when it is allowed.
        one = not handler.request_streaming
        if handler.response_streaming:
            stream = handler.stream_stream or handler.unary_stream

            async def streamed(requests: Any, context: Context) -> AsyncIterator[Any]:
                request = await self._admitted(requests, context, one)
                async for response in stream(request, context):
                    yield response

            return grpc.stream_stream_rpc_method_handler(streamed, *coders)
        single = handler.stream_unary or handler.unary_unary
        if self._observe is not None:
            single = observed(method, single, _caller, self._observe)

        async def answered(requests: Any, context: Context) -> Any:
            return await single(await self._admitted(requests, context, one), context)

        return grpc.stream_unary_rpc_method_handler(answered, *coders)

    async def _admitted(self, requests: AsyncIterator[Any], context: Context, one: bool) -> Any:
        """What the method takes: the stream, or its one message."""
        names = names_of(context)
        try:
            if names is not None:
                await self._check(names, requests, context)
                return await _first(requests, _KNOWN_MAX_S) if one else requests
            async with self._turns.turn(context.peer()):
                first = await _first(requests, _UNKNOWN_MAX_S)
            return first if one else _chained(first, requests)
        except MetaError as error:
            return await abort(context, error)

    async def _check(
        self,
        names: tuple[list[str], list[str]],
        requests: AsyncIterator[Any],
        context: Context,
    ) -> None:
        """Raises PermissionDenied, once the client has sent what it calls with: a stream that ends
        before may be told to it as one that was reset (INTERNAL), not as refused."""
        try:
            self._allowed.check(*names)
        except PermissionDenied:
            with contextlib.suppress(MetaError):
                async with self._turns.turn(context.peer()):
                    for _ in range(2):  # the message, and the end
                        await _first(requests, _UNKNOWN_MAX_S)
            raise


def _caller(context: Context) -> str:
    """Names of the caller's certificate; empty: it has none."""
    names = names_of(context)
    return "" if names is None else ", ".join(dict.fromkeys([*names[0], *names[1]]))[:_SHOWN_MAX]


async def _chained(first: Any, rest: AsyncIterator[Any]) -> AsyncIterator[Any]:
    yield first
    async for each in rest:
        yield each


async def _first(requests: AsyncIterator[Any], wait_s: float) -> Any:
    """Raises InvalidArgument, or Overloaded: either side may be too busy, and may try again."""
    try:
        async with asyncio.timeout(wait_s):
            return await anext(aiter(requests))
    except TimeoutError:
        raise Overloaded(f"the request did not come within {wait_s:.0f} s") from None
    except StopAsyncIteration:
        raise InvalidArgument("the call ended without a request") from None
