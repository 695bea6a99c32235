"""The gRPC service through which nodes find their group and become members of it."""

from __future__ import annotations

import asyncio
from typing import Final

from lakemq.meta_service.api.errors import InvalidArgument, NotLeader, PermissionDenied
from lakemq.meta_service.core.gateway import Gateway
from lakemq.meta_service.proto import discovery_pb2 as pb
from lakemq.meta_service.proto import discovery_pb2_grpc as rpc
from lakemq.meta_service.raft.membership import Refused
from lakemq.meta_service.raft.node import RaftNode
from lakemq.meta_service.server.allowed import Allowed, names_of
from lakemq.meta_service.server.assembly import Assembly
from lakemq.meta_service.server.failures import Context, unary
from lakemq.meta_service.server.maintenance import settle_change

ID_MAX_BYTES: Final = 255
_SETTLE_S: Final = 5.0


class Misplaced(ValueError):
    """A node that cannot be what it asks to be."""


class DiscoveryService(rpc.DiscoveryServicer):
    """Implements `Discovery` of discovery.proto."""

    def __init__(self, assembly: Assembly, allowed: Allowed) -> None:
        self._assembly = assembly
        self._allowed = allowed

    @property
    def _gateway(self) -> Gateway:
        return self._assembly.gateway

    def leader_address(self) -> str:
        """Address of the leader's API; empty: not known."""
        return self._assembly.leader()[1]

    @unary
    async def Discover(self, request: pb.DiscoverRequest, context: Context) -> pb.DiscoverResponse:
        """Who this member is, and the group that it knows; empty before it has one."""
        assembly = self._assembly
        group = assembly.node.group
        return pb.DiscoverResponse(
            member_id=assembly.membership.node_id,
            raft_address=assembly.raft_address,
            cluster_id=assembly.cluster_id(),
            members={**group.voters, **group.learners},
        )

    @unary
    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:
        """One step of a node towards a vote; the node asks again until it votes."""
        name, address = request.member_id, request.address
        if not name or len(name.encode()) > ID_MAX_BYTES or ":" not in address:
            raise InvalidArgument("join: a member needs an id and an address `host:raft_port`")
        self._check_certificate(context, name)
        if self._gateway.leading_term() is None:
            raise NotLeader("this member is not the leader")
        try:
            votes, index, term = await self._gateway.run(lambda node: admit(node, name, address))
        except Misplaced as mistake:
            raise InvalidArgument(f"join: {mistake}") from mistake
        except Refused as refusal:
            return pb.JoinResponse(waits_for=str(refusal))
        async with asyncio.timeout(_SETTLE_S):
            await settle_change(self._gateway, index, term)
        return pb.JoinResponse(votes=votes, waits_for="" if votes else "it gets the log first")

    def _check_certificate(self, context: Context, name: str) -> None:
        """With TLS a node joins only under a name of its certificate, and only if meta.nodes or the
        group has it. Raises PermissionDenied."""
        names = names_of(context)
        if names is None:
            return
        if name not in names[0]:
            raise PermissionDenied(f"the certificate does not name {name!r}")
        if not self._allowed.is_node(name):
            raise PermissionDenied(f"{name!r} may not join: add it to meta.nodes")


def admit(node: RaftNode, name: str, address: str) -> tuple[bool, int, int]:
    """Raft thread: one step of a node towards a vote: (it votes, log index of the change, term).

    Raises Refused when it has to wait, and Misplaced when it can never be.
    """
    group = node.group
    known = group.voters.get(name)
    if known is not None and known != address:
        raise Misplaced(
            f"{name} is a voter at {known}, not at {address}; remove it first, or give this "
            "node an id of its own"
        )
    if known is None and group.learners.get(name) != address:
        node.add_learner(name, address)
        return False, node.group_index, node.term
    if known is None:
        node.promote(name)
    return True, node.group_index, node.term
