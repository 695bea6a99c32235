"""A broker's part of the network of brokers, put together: its listener and its connections."""

from __future__ import annotations

from dataclasses import dataclass

from lakemq.broker_core.cluster.identity import PeerBook, PeerIdentity, PeerTls
from lakemq.broker_core.cluster.local.sockets import ProcessSockets
from lakemq.broker_core.cluster.peer_server import PeerServer
from lakemq.broker_core.cluster.peers import Peers
from lakemq.broker_core.cluster_nodes import ClusterNodes
from lakemq.broker_core.configuration.settings import ClusterSettings
from lakemq.broker_core.refusals import Refusals


@dataclass(frozen=True, slots=True)
class PeerNetwork:
    """Made before the node has registered; other nodes are called from then on."""

    identity: PeerIdentity
    nodes: ClusterNodes
    server: PeerServer
    peers: Peers
    refusals: Refusals

    @classmethod
    def over(
        cls,
        identity: PeerIdentity,
        nodes: ClusterNodes,
        *,
        settings: ClusterSettings,
        host: str,
        tls: PeerTls | None,
        sockets: ProcessSockets | None,
    ) -> PeerNetwork:
        """The network of the nodes that the catalog knows. `host`: of the listener, where the
        settings name none. `sockets`: of a process of a node that has several."""
        book = PeerBook(identity, nodes.broker_epochs, nodes.poll_soon)
        server = PeerServer(
            identity,
            book,
            host=settings.host or host,
            port=settings.peer_port,
            tls=tls,
            advertise=settings.advertise,
            sockets=sockets,
        )
        peers = Peers(identity, book, nodes.peer_address_of, tls, sockets)
        refusals = Refusals(nodes.peer_address_of, nodes.broker_epochs)
        server.on_ended = peers.on_ended = refusals.look_at
        return cls(identity, nodes, server, peers, refusals)
