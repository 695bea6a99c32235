"""Who calls: the one place where a gRPC context becomes a principal."""

from __future__ import annotations

import grpc

from broker_core.api.authorization_header import Shown, read_authorization
from broker_core.api.ports import Broker, Credentials
from broker_core.api.types import Principal
from plugins.native.tls import alternative_names, subject_of

Context = grpc.aio.ServicerContext[object, object]


async def principal_of(broker: Broker, context: Context) -> Principal:
    """Raises NotAuthenticated."""
    return await broker.authenticate(credentials_of(context))


def credentials_of(context: Context) -> Credentials:
    """What the caller shows: a certificate, `authorization` metadata. Raises NotAuthenticated."""
    peer = context.peer()
    host = peer.partition(":")[2].rpartition(":")[0].replace("%5B", "").replace("%5D", "")
    shown = context.auth_context()
    username, password, token = _authorization(context)
    subject, names = subject_of(shown), alternative_names(shown)
    return Credentials("native", "", host, username, password, subject, names, token, "native")


def _authorization(context: Context) -> Shown:
    texts = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    return read_authorization(str(texts[0]) if texts else None)
