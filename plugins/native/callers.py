"""Who calls: the one place where a gRPC context becomes a principal."""

from __future__ import annotations

import grpc

from broker_core.api.ports import Broker, Credentials
from broker_core.api.types import Principal
from plugins.native.tls import subject_of

Context = grpc.aio.ServicerContext[object, object]


async def principal_of(broker: Broker, context: Context) -> Principal:
    """Raises NotAuthenticated."""
    peer = context.peer()
    host = peer.partition(":")[2].rpartition(":")[0].replace("%5B", "").replace("%5D", "")
    subject = subject_of(context.auth_context())
    return await broker.authenticate(Credentials("native", "", host, certificate_subject=subject))
