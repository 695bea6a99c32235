"""Who speaks on a connection between brokers: what a node says of itself, and what is believed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lakemq.broker_core.api.cluster.channels import Peer as Peer
from lakemq.broker_core.api.errors import NotAuthenticated, StaleEpoch, Unavailable
from lakemq.meta_service.api.types import node_of

_NODE: Final = "lakemq-node"
_EPOCH: Final = "lakemq-broker-epoch"
_CLUSTER: Final = "lakemq-cluster"
_EPOCH_DIGITS_MAX: Final = 18


@dataclass(frozen=True, slots=True)
class PeerTls:
    """Certificate chain, its key, and the authority that signed the nodes' certificates (PEM)."""

    certificate: bytes
    key: bytes
    authority: bytes


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """What a node says of itself to others."""

    node_id: str
    cluster_id: str
    broker_epoch: Callable[[], int]
    """Of its registration; 0: it has not registered yet, and calls no other node."""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """As gRPC metadata."""
        return (
            (_NODE, self.node_id),
            (_EPOCH, str(self.broker_epoch())),
            (_CLUSTER, self.cluster_id),
        )


class PeerBook:
    """What is known of the nodes of the cluster."""

    def __init__(
        self,
        identity: PeerIdentity,
        registered: Callable[[], Mapping[str, int]],
        on_unknown: Callable[[], None] = lambda: None,
    ) -> None:
        """`registered()`: node id -> broker epoch, as the catalog had them some seconds ago at
        most. `on_unknown()`: a node has called that is not among them."""
        self._identity = identity
        self._registered = registered
        self._on_unknown = on_unknown
        self._heard: dict[str, int] = {}

    def accept(self, metadata: Mapping[str, str], names: Iterable[str] | None) -> Peer:
        """The caller that says this of itself. `names`: those of its certificate; None: no TLS.

        Raises NotAuthenticated (the certificate names another, or another cluster), StaleEpoch (an
        earlier process of that node), Unavailable (not registered as far as is known here; the
        caller may try again).
        """
        node, epoch = metadata.get(_NODE, ""), metadata.get(_EPOCH, "")
        # What it says is a claim; the certificate that TLS verified is the proof.
        # Processes of a node share its certificate, which names the node alone.
        if names is not None and not {node, node_of(node)}.intersection(names):
            raise NotAuthenticated(f"the certificate does not name {node!r}")
        cluster = metadata.get(_CLUSTER, "")
        if cluster != self._identity.cluster_id:
            raise NotAuthenticated(
                f"{node!r} belongs to cluster {cluster!r}, this node to "
                f"{self._identity.cluster_id!r}"
            )
        if not (epoch.isdecimal() and epoch.isascii() and len(epoch) <= _EPOCH_DIGITS_MAX):
            raise NotAuthenticated(f"{node!r} says no broker epoch: {epoch[:32]!r}")
        return self._believed(node, int(epoch))

    def _believed(self, node: str, epoch: int) -> Peer:
        registered = self._registered()
        if node not in registered or node == self._identity.node_id:
            self._on_unknown()
            raise Unavailable(f"no node {node!r} is registered, as far as is known here")
        # A node that has just registered says it before the catalog's list is read again.
        newest = max(registered[node], self._heard.get(node, 0))
        if epoch < newest:
            raise StaleEpoch(f"{node!r} speaks for broker epoch {epoch}; {newest} is known")
        self._heard = {each: self._heard.get(each, 0) for each in registered}  # no others
        self._heard[node] = epoch
        return Peer(node, epoch)

    def check_callee(self, node: str, metadata: Mapping[str, str]) -> None:
        """Raises NotAuthenticated unless `node` has answered: its address may be another's by
        now."""
        found = metadata.get(_NODE, ""), metadata.get(_CLUSTER, "")
        if found != (node, self._identity.cluster_id):
            raise NotAuthenticated(
                f"at the address of {node!r}, node {found[0]!r} of cluster {found[1]!r} answers"
            )


def metadata_of(pairs: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    """gRPC's metadata by name, without what is not text."""
    return {name: value for name, value in pairs or () if isinstance(value, str)}


def names_of(auth_context: Mapping[str, Sequence[bytes]]) -> list[str]:
    """Names of the certificate that the other side has shown."""
    found = auth_context.get("x509_subject_alternative_name", ())
    return [name.decode("utf-8", "replace") for name in found]
