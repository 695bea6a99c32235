"""Who a client is: asked of the broker beside everything else, in one step or several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.ports import Broker, Exchange
from lakemq.broker_core.api.types import Challenge
from lakemq.plugins.mqtt.server.login_failures import tell_failure
from lakemq.plugins.mqtt.session import authenticating
from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.session.progress import Dialogue
from lakemq.plugins.mqtt.wire.reasons import connect_reason


class Logins:
    """Authenticates the clients of an engine."""

    def __init__(self, broker: Broker, now_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._asked: dict[Connection, asyncio.Task[None]] = {}
        """Those that find out who the client of a connection is."""
        self._exchanges: dict[Connection, tuple[Dialogue, Exchange]] = {}
        """Those that wait for their client's next words."""

    def ask(self, connection: Connection, task: asyncio.Task[None]) -> None:
        """`task` finds out who a client is."""
        self._asked[connection] = task
        task.add_done_callback(lambda _: self._asked.pop(connection, None))

    def forget(self, connection: Connection) -> None:
        """A network connection is gone: stop finding out who its client is."""
        self._exchanges.pop(connection, None)
        task = self._asked.get(connection)
        if task is not None:
            task.cancel()

    async def step(self, connection: Connection) -> bool:
        """Take what a client said to its exchange; False: it said nothing."""
        enhanced = connection.enhanced
        dialogue = enhanced.dialogue if enhanced is not None else None
        if enhanced is None or dialogue is None or dialogue.said is None:
            return False
        under_way, exchange = self._exchanges.pop(connection, (None, None))
        try:
            if exchange is None or under_way is not dialogue:
                exchange = self._broker.begin_exchange(enhanced.method, enhanced.credentials)
            outcome = await exchange.step(dialogue.said)
        except LakeMQError as error:
            tell_failure(connection, error)
            reason = connect_reason(error)
            authenticating.refused(connection, dialogue, reason, str(error), self._now_ms())
        else:
            # `dialogue` tells them whether this exchange is still the one that counts.
            if isinstance(outcome, Challenge):
                if enhanced.dialogue is dialogue and not connection.ended:
                    self._exchanges[connection] = dialogue, exchange
                authenticating.challenged(connection, dialogue, outcome.data, self._now_ms())
            else:
                authenticating.accepted(
                    connection, dialogue, outcome.principal, outcome.data, self._now_ms()
                )
        return True

    def recognize(self, connection: Connection) -> bool:
        """Let a client in, or refuse it, if nothing needs to be asked for that; False: ask."""
        credentials = connection.credentials
        assert credentials is not None
        try:
            principal = self._broker.recognize(credentials)
        except LakeMQError as error:
            self._refuse(connection, error)
            return True
        if principal is None:
            return False
        connection.authenticated(principal, self._now_ms())
        return True

    async def authenticate(self, connection: Connection) -> None:
        """Find out who a client is by its credentials."""
        credentials = connection.credentials
        assert credentials is not None
        try:
            principal = await self._broker.authenticate(credentials)
        except LakeMQError as error:
            self._refuse(connection, error)
        else:
            connection.authenticated(principal, self._now_ms())

    def _refuse(self, connection: Connection, error: LakeMQError) -> None:
        tell_failure(connection, error)
        connection.refused(connect_reason(error), str(error), self._now_ms())
