"""What an operator is told of logins that failed through no fault of the client."""

from __future__ import annotations

import logging
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, NotAuthenticated
from lakemq.plugins.mqtt.session.connection import Connection

_log: Final = logging.getLogger(__name__)


def tell_failure(connection: Connection, error: LakeMQError) -> None:
    """Log why a client could not be authenticated, unless that is its own fault."""
    if not isinstance(error, NotAuthenticated):
        client = {"client": connection.client_id}
        _log.warning("%r was not authenticated: %s", connection, error, extra=client)
