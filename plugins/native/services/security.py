"""The gRPC edge of `security.proto`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, NotAuthenticated, Unavailable
from lakemq.broker_core.api.limits.connection_limits import peer_of
from lakemq.broker_core.api.limits.reading_turns import ReadingTurns
from lakemq.broker_core.api.ports import Broker, Exchange
from lakemq.broker_core.api.types import Challenge
from lakemq.plugins.native.proto import security_pb2 as pb
from lakemq.plugins.native.proto.security_pb2_grpc import SecurityServicer
from lakemq.plugins.native.server.authentication import (
    Context,
    Entrance,
    credentials_of,
    host_of,
    principal_of,
)
from lakemq.plugins.native.server.connection_guard import ConnectionGuard

EXCHANGE_MAX_S: Final = 30.0
"""A client that takes longer to log in is refused, its turns to send included."""
_FIRST_MAX_S: Final = 0.5
"""The first message comes with the call, so it has this long after its turn to be there."""
_NEXT_MAX_S: Final = 2.0
"""The same for those that the client makes from what we said."""
_TURNS: Final = 1
"""Messages that are read at a time: before a client is known, gRPC takes as many bytes of one as
of a record batch (`message_max_bytes`)."""
_WAITING_MAX: Final = 64
_WAITING_PER_PEER_MAX: Final = 8


class SecurityService(SecurityServicer):
    """Implements `security.proto`; its docstrings are there."""

    def __init__(self, broker: Broker, entrance: Entrance, guard: ConnectionGuard) -> None:
        self._broker = broker
        self._entrance = entrance
        self._guard = guard
        self._turns = ReadingTurns(
            _TURNS,
            waiting_max=_WAITING_MAX,
            waiting_per_peer_max=_WAITING_PER_PEER_MAX,
            refusal=lambda: Unavailable("too many logins are under way; try again"),
        )

    async def Authenticate(
        self, request_iterator: AsyncIterator[pb.AuthenticateRequest], context: Context
    ) -> AsyncIterator[pb.AuthenticateResponse]:
        """Log in by one exchange of a mechanism such as SCRAM-SHA-256; the last answer holds a
        token. Raises NotAuthenticated, Unavailable."""
        exchange: Exchange | None = None
        peer = peer_of(host_of(context))
        try:
            async with asyncio.timeout(EXCHANGE_MAX_S):
                while True:
                    wait_s = _FIRST_MAX_S if exchange is None else _NEXT_MAX_S
                    request = await self._read(request_iterator, peer, wait_s)
                    if request is None:
                        break
                    if exchange is None:
                        shown = credentials_of(context)
                        exchange = self._broker.begin_exchange(request.mechanism, shown)
                    said = await exchange.step(request.data)
                    if isinstance(said, Challenge):
                        yield pb.AuthenticateResponse(data=said.data)
                        continue
                    token, expires_ms = self._broker.issue_token(said.principal)
                    self._entrance.let_in(context)
                    yield pb.AuthenticateResponse(
                        data=said.data, token=token, expires_ms=expires_ms
                    )
                    return
            raise NotAuthenticated("the exchange was not finished")
        except TimeoutError:
            self._entrance.refuse(context)
            raise NotAuthenticated("the exchange took too long") from None
        except LakeMQError:
            self._entrance.refuse(context)
            raise

    async def _read(
        self, requests: AsyncIterator[pb.AuthenticateRequest], peer: str, wait_s: float
    ) -> pb.AuthenticateRequest | None:
        """The client's next message, when it is its turn; None: there is none. Raises TimeoutError,
        Unavailable."""
        # The time counts from the turn: a client must not pay for those before it.
        async with self._turns.turn(peer), asyncio.timeout(wait_s):
            with self._guard.hurry():
                return await anext(requests, None)

    async def WhoAmI(self, request: pb.WhoAmIRequest, context: Context) -> pb.WhoAmIResponse:
        """The principal that the broker takes the caller for. Raises NotAuthenticated."""
        principal = await principal_of(self._broker, context)
        return pb.WhoAmIResponse(
            name=principal.name,
            kind=principal.kind,
            roles=principal.roles,
            expires_ms=principal.expires_ms or 0,
        )
