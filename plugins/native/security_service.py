"""The gRPC edge of `security.proto`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from broker_core.api.errors import LakeMQError, NotAuthenticated
from broker_core.api.ports import Broker, Exchange
from broker_core.api.types import Challenge
from plugins.native import security_pb2 as pb
from plugins.native.callers import Context, credentials_of, principal_of
from plugins.native.handlers import abort
from plugins.native.security_pb2_grpc import SecurityServicer

EXCHANGE_S_MAX: Final = 30.0
"""A client that takes longer to log in is refused."""
_EXCHANGES_MAX: Final = 1000


class SecurityService(SecurityServicer):
    """Implements `security.proto`; its docstrings are there."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._turns = asyncio.Semaphore(_EXCHANGES_MAX)

    async def Authenticate(
        self, request_iterator: AsyncIterator[pb.AuthenticateRequest], context: Context
    ) -> AsyncIterator[pb.AuthenticateResponse]:
        exchange: Exchange | None = None
        try:
            async with self._turns, asyncio.timeout(EXCHANGE_S_MAX):
                async for request in request_iterator:
                    if exchange is None:
                        shown = credentials_of(context)
                        exchange = self._broker.begin_exchange(request.mechanism, shown)
                    said = await exchange.step(request.data)
                    if isinstance(said, Challenge):
                        yield pb.AuthenticateResponse(data=said.data)
                        continue
                    token, expires_ms = self._broker.issue_token(said.principal)
                    yield pb.AuthenticateResponse(
                        data=said.data, token=token, expires_ms=expires_ms
                    )
                    return
            raise NotAuthenticated("the exchange was not finished")
        except TimeoutError:
            await abort(context, NotAuthenticated("the exchange took too long"))
        except LakeMQError as error:
            await abort(context, error)

    async def WhoAmI(self, request: pb.WhoAmIRequest, context: Context) -> pb.WhoAmIResponse:
        try:
            principal = await principal_of(self._broker, context)
        except LakeMQError as error:
            await abort(context, error)
        return pb.WhoAmIResponse(
            name=principal.name,
            kind=principal.kind,
            roles=principal.roles,
            expires_ms=principal.expires_ms or 0,
        )
