"""The connections of the dashboard, and their deadlines: uvicorn has none for a request that does
not come, for a body that does not end, or for an answer that is not read.

A connection without a session has `unauthenticated_timeout_ms` for a request to come, for its form
and for each part of its answer; one of a session has longer. What misses its deadline is aborted:
closed in order, a connection would wait until all that was written is read.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from lakemq.plugins.admin.accepting import KEEP_ALIVE_S, AcceptedConnection, Admission

_PART_S: Final = 20.0
"""For a whole form of a session, and for a part of an answer (64 kB of a file, an event) to find
room: what was written before must be read."""
_STATE: Final = "connection"


class DashboardConnection(AcceptedConnection):
    """Waits for a request, or has one under way."""

    def __init__(self, admission: Admission, config: Config, **made_with: Any) -> None:
        """`made_with`: what uvicorn makes its protocol with."""
        super().__init__(admission, self._served)
        self._config = config
        self._made_with = made_with
        self._under_way = 0

    def _served(self) -> asyncio.Protocol:
        # Requests find their connection in the state that uvicorn copies for each.
        state = {**self._made_with.pop("app_state"), _STATE: self}
        return H11Protocol(self._config, app_state=state, **self._made_with)

    def began(self) -> None:
        """A request has come: it has deadlines of its own."""
        self._under_way += 1
        self.disarm()

    @property
    def part_s(self) -> float:
        """How long a form, or a part of an answer, may take."""
        return _PART_S if self.authenticated else self._admission.timeout_s

    def ended(self) -> None:
        """It is answered."""
        self._under_way -= 1
        if not self._under_way and self.handler is not None:
            self.arm(KEEP_ALIVE_S if self.authenticated else self._admission.timeout_s)


def protocol_of(admission: Admission) -> type[asyncio.Protocol]:
    """For `uvicorn.Config.http`, which takes whatever makes a protocol."""

    def made(
        config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None
    ) -> asyncio.Protocol:
        return DashboardConnection(
            admission, config, server_state=server_state, app_state=app_state, _loop=_loop
        )

    return cast(type[asyncio.Protocol], made)


class Deadlines:
    """ASGI: the outermost. Without a `DashboardConnection` it does nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        connection = scope.get("state", {}).get(_STATE)
        if scope["type"] != "http" or not isinstance(connection, DashboardConnection):
            await self._app(scope, receive, send)
            return
        began_s = asyncio.get_running_loop().time()
        whole = False

        def noted() -> DashboardConnection:
            # The guard has found it by now. Not only in the end: a stream of events has none.
            if scope["state"].get("session") is not None:
                connection.authenticate()
            return connection

        async def received() -> Message:
            nonlocal whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(began_s + noted().part_s):
                    message = await receive()
            except TimeoutError:
                connection.abort()
                message = await receive()  # that it is gone
            whole = not message.get("more_body", False)
            return message

        async def sent(message: Message) -> None:
            try:
                async with asyncio.timeout(noted().part_s):
                    await send(message)
            except TimeoutError:
                connection.abort()

        connection.began()
        try:
            await self._app(scope, received, sent)
        except ClientDisconnect:
            pass  # in the middle of a form
        finally:
            connection.ended()
