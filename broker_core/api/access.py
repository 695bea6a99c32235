"""Values of authentication and authorization.

A client shows `Credentials`; authentication turns them into a `Principal`, in one step or over an
exchange of several (`Challenge`, `Accepted`). Authorization decides about a principal, an
operation, a resource and an `AccessContext`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple


class Operation(enum.Enum):
    """What a principal asks to do with a resource."""

    READ = "read"
    """Fetch from a topic or subscribe to a topic filter."""
    WRITE = "write"
    """Append to a topic or publish to a topic name."""
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    DESCRIBE = "describe"


class Resource(NamedTuple):
    """What is acted on: kind `topic`, `topic_name` (MQTT), `group`, `cluster`, `sink`,
    `transaction` or `schema`, and its name.

    A `topic_name` is a topic filter where the operation is READ.
    """

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of access control: who may, or may not, do what with which resources.

    A rule that denies wins over all that allow. Texts are as the TOML file has them.
    """

    who: tuple[str, ...]
    """`user:<name>`, `role:<name>`, `anonymous`, `any`."""
    operations: tuple[str, ...]
    """Values of `Operation`, `publish` (write), `subscribe` (read) or `all`."""
    kind: str
    """Kind of the resource, or `any`."""
    name: str
    """Name of the resource: a topic filter for `topic_name`, else a text where a last `*` stands
    for any rest. `%c` and `%u` stand for the client id and the user."""
    allow: bool = True
    qos: tuple[int, ...] = ()
    """Only for publishes and subscriptions of these QoS; empty: whatever the QoS."""
    retain: bool | None = None
    """Only for publishes that are (not) retained; None: for both."""
    rule_id: str = ""
    """Names a rule that the MetaService keeps; empty: from a file or a token."""
    exact: bool = False
    """`topic_name` alone: the rule is about this very filter, not about all that it matches. A rule
    that denies `#` so leaves every narrower filter alone."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who acts: the outcome of authentication."""

    name: str
    kind: str = "user"
    """`user`, `anonymous` or `node`."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    roles: tuple[str, ...] = ()
    """What rules for `role:<name>` go by; sorted."""
    rules: tuple[Rule, ...] = ()
    """Rules that came with the credentials (a token's claims), beside those that are configured."""
    expires_ms: int | None = field(default=None, compare=False)
    """When the credentials expire, and sessions opened with them end: ms since the epoch; None:
    never."""
    credential: str = field(default="", compare=False, repr=False)
    """Fingerprint of the password or SCRAM keys that were used: sessions opened with it end when
    the user gets others (`Broker.ended`). Empty: no password."""


ANONYMOUS: Final = Principal("anonymous", "anonymous")
"""Clients that showed no credentials."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client showed. Its repr holds no secret, so that none reaches a log."""

    protocol: str
    """Name of the protocol: `mqtt`, `native`, `admin`, or a plugin's own."""
    client_id: str
    peer_host: str
    """Its address; empty or `unix`: a unix socket."""
    username: str | None = None
    password: bytes | None = None
    certificate_subject: str | None = None
    """Subject of its verified certificate, like `CN=device-1,O=Acme`."""
    certificate_names: tuple[str, ...] = ()
    """Subject alternative names of its verified certificate, like `DNS:device-1.acme.org`,
    `URI:spiffe://acme/device-1`, `email:ann@acme.org`."""
    token: str | None = None
    """A bearer token, where the protocol has a place of its own for it."""
    listener: str = ""
    """Name of the listener that the client came to."""

    def __repr__(self) -> str:
        return f"Credentials({self.protocol}, {self.client_id!r}, {self.peer_host})"


class AccessContext(NamedTuple):
    """What is known of a request besides principal, operation and resource."""

    protocol: str = ""
    client_id: str = ""
    peer_host: str = ""
    listener: str = ""
    qos: int | None = None
    """MQTT: QoS of the publish, or asked for by the subscription."""
    retain: bool | None = None
    """MQTT: whether the publish is retained."""


NO_CONTEXT: Final = AccessContext()


class Verdict(NamedTuple):
    """Whether a principal may do something, and why."""

    allowed: bool
    reason: str


class Challenge(NamedTuple):
    """A step of an exchange: data that the client must answer."""

    data: bytes

    def __repr__(self) -> str:
        return f"Challenge({len(self.data)} bytes)"


class Accepted(NamedTuple):
    """The last step of an exchange: the client is authenticated."""

    principal: Principal
    data: bytes = b""
    """The server's last message, where the mechanism has one."""
