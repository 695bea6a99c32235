"""Which certificates a member serves. The members' authority signed all that can connect; of those
it serves nodes and operators, known by the names in their certificates, and nobody else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc

from meta_service.api.errors import PermissionDenied
from meta_service.server.failures import Context, abort

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
            f"the certificate of {shown[:_SHOWN_MAX] or 'nobody'} names neither a node of this "
            "cluster (a member, a registered broker, one of meta.nodes) nor one of meta.operators"
        )


def names_of(context: Context) -> tuple[list[str], list[str]] | None:
    """(subject alternative names, common names) of the caller's verified certificate; None: it
    speaks plain text, which is for loopback only."""
    told = context.auth_context()
    if b"ssl" not in told.get("transport_security_type", ()):
        return None
    alternative, common = (
        [value.decode("utf-8", "replace") for value in told.get(kind, ())]
        for kind in ("x509_subject_alternative_name", "x509_common_name")
    )
    return alternative, common


class CertificateCheck(grpc.aio.ServerInterceptor):
    """Asks `Allowed` before any method of any service runs."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._guarded: dict[str, Any] = {}

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        guarded = self._guarded.get(details.method)
        if guarded is None:
            guarded = self._guarded[details.method] = self._guard(handler)
        return guarded

    def _guard(self, handler: Any) -> Any:
        """The same handler, behind the check."""
        coders = handler.request_deserializer, handler.response_serializer
        if handler.response_streaming:
            stream = handler.stream_stream or handler.unary_stream

            async def streamed(request: Any, context: Context) -> AsyncIterator[Any]:
                await self._check(context)
                async for response in stream(request, context):
                    yield response

            if handler.request_streaming:
                return grpc.stream_stream_rpc_method_handler(streamed, *coders)
            return grpc.unary_stream_rpc_method_handler(streamed, *coders)
        single = handler.stream_unary or handler.unary_unary

        async def answered(request: Any, context: Context) -> Any:
            await self._check(context)
            return await single(request, context)

        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(answered, *coders)
        return grpc.unary_unary_rpc_method_handler(answered, *coders)

    async def _check(self, context: Context) -> None:
        names = names_of(context)
        if names is None:
            return
        try:
            self._allowed.check(*names)
        except PermissionDenied as error:
            await abort(context, error)
