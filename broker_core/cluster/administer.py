"""`Peer.Administer`: a request to the admin API that another node shall carry out. What it says is
the admin plugin's matter; that a broker of the cluster says it is shown here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from google.protobuf.message import DecodeError

from lakemq.broker_core.api.errors import InvalidRequest, OutcomeUnknown, Unavailable
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.cluster.peers import Peers
from lakemq.broker_core.cluster.proto import peer_pb2 as pb

METHOD = "Administer"


class Administering:
    """Answers other nodes, once the admin API is there."""

    def __init__(self) -> None:
        self.answer_with: Callable[[bytes], Awaitable[bytes]] | None = None

    async def answer(self, peer: Peer, request: bytes) -> bytes:
        """An AdministerResponse. Raises InvalidRequest, Unavailable."""
        if self.answer_with is None:
            raise Unavailable("the admin API of this node is off")
        try:
            asked = pb.AdministerRequest.FromString(request).request
        except DecodeError as error:
            raise InvalidRequest(f"not an AdministerRequest: {error}") from None
        return pb.AdministerResponse(answer=await self.answer_with(asked)).SerializeToString()


async def administer(peers: Peers, node: str, request: bytes) -> bytes:
    """What the admin API of a node answers. Raises Unavailable: it has done nothing;
    OutcomeUnknown, NotAuthenticated."""
    message = pb.AdministerRequest(request=request).SerializeToString()
    answer = await peers.call(node, METHOD, message)
    try:
        return pb.AdministerResponse.FromString(answer).answer
    except DecodeError as error:
        raise OutcomeUnknown(f"{node}: not an AdministerResponse: {error}") from None
