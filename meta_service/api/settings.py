"""Settings of a MetaService member: section `[meta]` of the TOML file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_Port = Annotated[int, Field(ge=0, le=65535)]


class MetaSettings(BaseModel):
    """This node's member of the MetaService."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    host: str = ""
    """Address to bind to; empty: `node.host`."""
    port: _Port = 9701
    """TCP port of the MetaService's gRPC."""
    raft_port: _Port = 9702
    """TCP port on which members of the Raft group talk to each other."""
    members: dict[str, str] = {}
    """All members of the Raft group, this node included: node id = `host:raft_port`. Empty: this
    node alone is the group. Once the group was changed by `lakemq meta add` or `remove`, what the
    members agreed on counts instead."""
    join: list[str] = []
    """In place of `members`: where members can be asked (`host:port`, of `meta.port`; a DNS name
    may stand for several). With an empty disk this node joins their group; later it only
    listens for them."""
    expect: Annotated[int, Field(ge=0)] = 0
    """With `join`, where no group is there yet: once so many nodes see each other, the one with the
    smallest id founds the group and the others join it. 0: wait for a group."""
    advertise: str = ""
    """With `join`, `host:raft_port` under which the other members reach this node; empty: `host`
    and `raft_port`."""
    advertise_api: str = ""
    """`host:port` under which other nodes reach this member's gRPC (`port`), where that is another
    address than the one it listens on; empty: that one."""
    tls_cert: str = ""
    """File with this node's certificate chain (PEM); it must name the node's id as a DNS name.
    Empty: plain text, which is for loopback only."""
    tls_key: str = ""
    """File with the certificate's private key (PEM)."""
    tls_ca: str = ""
    """File with the authority that signed the members' and brokers' certificates (PEM)."""
    operators: list[str] = []
    """With TLS: names of certificates that may administer the cluster (users, rules, backups,
    members), by subject alternative name or common name. Members and registered brokers may
    anyway; other callers are refused."""
    nodes: list[str] = []
    """With TLS: ids of nodes that may join though they are neither members nor registered yet; a
    last `*` stands for any rest."""
    ca_shared_with_clients: bool = False
    """Whether `tls_ca` may have signed the certificates of clients too (a listener's `tls_ca`).
    If it may not, such a node does not start."""
    start_max_s: Annotated[float, Field(gt=0)] = 60.0
    """A starting node waits this long for a majority of the members (s)."""
    replace_after_s: Annotated[float, Field(ge=0)] = 1800.0
    """Replicas of a node that was not heard for so long are placed on other nodes (s), where a
    leader is there to copy from; 0: never. A node that returns earlier keeps its own."""
