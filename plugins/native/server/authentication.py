"""Who calls: the one place where a gRPC context becomes a principal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import grpc

from lakemq.broker_core.api.authorization_header import (
    AuthorizationCredentials,
    read_authorization,
)
from lakemq.broker_core.api.errors import NotAuthenticated
from lakemq.broker_core.api.ports import Broker, Credentials
from lakemq.broker_core.api.types import Principal
from lakemq.plugins.native.server.connection_guard import ConnectionGuard
from lakemq.plugins.native.server.tls import alternative_names, subject_of

Context = grpc.aio.ServicerContext[object, object]


_admitted: Final[dict[int, Principal]] = {}
"""Who calls, of every call that is under way, by the identity of its context."""


class Entrance:
    """Lets calls in whose credentials the broker accepts."""

    def __init__(self, broker: Broker, guard: ConnectionGuard) -> None:
        """`guard` learns which connections are let in, and which are not."""
        self._broker = broker
        self._guard = guard

    @asynccontextmanager
    async def admitted(self, context: Context) -> AsyncIterator[None]:
        """Know who calls for as long as the call lasts. Raises NotAuthenticated."""
        try:
            principal = await self._broker.authenticate(credentials_of(context))
        except NotAuthenticated:
            self.refuse(context)
            raise
        self.let_in(context)
        # By identity, for as long as the call holds its context: the id is not used again
        # meanwhile.
        _admitted[id(context)] = principal
        try:
            yield
        finally:
            del _admitted[id(context)]

    def refuse(self, context: Context) -> None:
        """The caller has not authenticated."""
        self._guard.refused(host_of(context), port_of(context))

    def let_in(self, context: Context) -> None:
        """The caller has authenticated."""
        self._guard.reconciler.authenticated(host_of(context), port_of(context))


async def principal_of(broker: Broker, context: Context) -> Principal:
    """The principal of a call. Raises NotAuthenticated."""
    known = _admitted.get(id(context))
    return known or await broker.authenticate(credentials_of(context))


def host_of(context: Context) -> str:
    """The caller's IP address."""
    peer = context.peer()
    return peer.partition(":")[2].rpartition(":")[0].replace("%5B", "").replace("%5D", "")


def port_of(context: Context) -> int:
    """The caller's TCP port; 0: it has none."""
    port = context.peer().rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def credentials_of(context: Context) -> Credentials:
    """What the caller shows: a certificate, `authorization` metadata. Raises NotAuthenticated."""
    host = host_of(context)
    shown = context.auth_context()
    username, password, token = _authorization(context)
    subject, names = subject_of(shown), alternative_names(shown)
    return Credentials("native", "", host, username, password, subject, names, token, "native")


def _authorization(context: Context) -> AuthorizationCredentials:
    texts = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    return read_authorization(str(texts[0]) if texts else None)
