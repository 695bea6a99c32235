"""How commands call the MetaService: one client for as long as a call takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lakemq.broker_core.api.command_line import MetaOptions, fail
from lakemq.meta_service.api.errors import MetaError, StartupFailed
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import MetaClient

T = TypeVar("T")


def ask_meta(members: MetaOptions, ask: Callable[[MetaClient], Awaitable[T]]) -> T:
    """What `ask` answers. An error ends the command with one line."""
    from lakemq.meta_service.api.client import RemoteClient
    from lakemq.meta_service.server.tls import channel_credentials, load_pem

    async def asked() -> T:
        settings = MetaSettings(
            tls_cert=members.tls_cert, tls_key=members.tls_key, tls_ca=members.tls_ca
        )
        credentials = channel_credentials(load_pem(settings))
        client = RemoteClient(members.address, credentials=credentials)
        try:
            return await ask(client)
        finally:
            await client.close()

    try:
        return asyncio.run(asked())
    except (MetaError, StartupFailed, OSError) as error:
        fail(f"MetaService at {', '.join(members.address)}: {error}")
