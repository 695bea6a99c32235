"""Who line clients are, and what they may do. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.types import AccessContext, Operation, Principal, Resource

PROTOCOL: Final = "line"


class LineAuthenticator:
    """Gives line clients a name, so that they can be told from other anonymous clients.

    Clients from elsewhere than this machine are left to the next authenticator, and in the end to
    the built-in rule, which refuses them.
    """

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        if credentials.protocol != PROTOCOL:
            return None
        if not ipaddress.ip_address(credentials.peer_host).is_loopback:
            return None
        return Principal(credentials.client_id, "anonymous", {"protocol": PROTOCOL})


class LineAuthorizer:
    """Line clients may write the configured topics and do nothing else; others are not judged."""

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = frozenset(topics)

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext,
    ) -> bool | None:
        if principal.attributes.get("protocol") != PROTOCOL:
            return None
        if operation is not Operation.WRITE or resource.kind != "topic":
            return False
        return not self._topics or resource.name in self._topics
