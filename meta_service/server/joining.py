"""How a node that starts with an empty disk finds its group: it asks around at the addresses that
it was given, each of which may be a DNS name behind which several members are.

A group that is there is joined. Where no node has one yet and as many nodes as expected see each
other, the one with the smallest id founds it, alone, and the others join: however differently
they see each other, no two of them ever count each other's votes in different groups.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import grpc

from lakemq.meta_service.api.errors import (
    InvalidArgument,
    MetaError,
    NotLeader,
    PermissionDenied,
    StartupFailed,
)
from lakemq.meta_service.api.hosts import join_host
from lakemq.meta_service.api.remote.failures import error_of_failure
from lakemq.meta_service.proto import discovery_pb2 as pb
from lakemq.meta_service.proto import discovery_pb2_grpc as rpc

LOG: Final = logging.getLogger(__name__)
_ANSWER_S: Final = 2.0
_JOIN_S: Final = 10.0
_PAUSE_S: Final = 0.2
ENDPOINTS_MAX: Final = 64


class Endpoint(NamedTuple):
    """One address behind a name."""

    target: str
    """`ip:port`."""
    host: str
    """As it was written: what the certificate must name."""


@dataclass(frozen=True, slots=True)
class PeerObservation:
    """What a member answered about itself."""

    endpoint: Endpoint
    member_id: str
    raft_address: str
    cluster_id: str
    members: dict[str, str]


class Found(NamedTuple):
    """A group to join: its members, and where to ask."""

    members: dict[str, str]
    endpoints: tuple[Endpoint, ...]


def choose(observations: Sequence[PeerObservation], own_id: str, expect: int) -> Found | bool:
    """A group to join; True: found one; False: look again. Raises StartupFailed."""
    with_group = [one for one in observations if one.cluster_id and one.members]
    clusters = {one.cluster_id for one in with_group}
    # Joining either could be the wrong one, and a log is not moved between clusters.
    if len(clusters) > 1:
        raise StartupFailed(
            "meta.join leads to members of different clusters: "
            + ", ".join(f"{one.member_id} is in {one.cluster_id}" for one in with_group)
        )
    if with_group:
        members = {name: at for one in with_group for name, at in one.members.items()}
        return Found(members, tuple(one.endpoint for one in with_group))
    names = {one.member_id for one in observations} | {own_id}
    # Exactly as many as expected: fewer may be a part of a divided network, of which the other part
    # founds a group too.
    return 0 < expect == len(names) and own_id == min(names)


async def resolve(address: str) -> list[Endpoint]:
    """Every endpoint behind `host:port`, none while the name is unknown."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit():
        raise StartupFailed(f"meta.join: {address!r} is not host:port")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM
        )
    except OSError:
        return []
    targets = {join_host(str(where[0]), int(port)) for _, _, _, _, where in found}
    return [Endpoint(target, host) for target in sorted(targets)[:ENDPOINTS_MAX]]


def _channel(endpoint: Endpoint, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(endpoint.target)
    try:
        ipaddress.ip_address(endpoint.host)
        options: list[tuple[str, str]] = []
    except ValueError:
        options = [("grpc.ssl_target_name_override", endpoint.host)]
    return grpc.aio.secure_channel(endpoint.target, credentials, options=options)


class Joining:
    """A node on its way into a group."""

    def __init__(
        self, addresses: Sequence[str], credentials: grpc.ChannelCredentials | None, own_id: str
    ) -> None:
        self._addresses = addresses
        self._credentials = credentials
        self._own_id = own_id
        self._reasons: dict[str, str] = {}

    async def find(self, expect: int, wait_s: float) -> Found | None:
        """The group to join; None: this node founds one. Raises StartupFailed after `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    chosen = choose(await self._look_around(), self._own_id, expect)
                    if isinstance(chosen, Found):
                        return chosen
                    if chosen:
                        return None
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            reasons = "; ".join(f"{at}: {why}" for at, why in sorted(self._reasons.items()))
            raise StartupFailed(
                f"meta.join: no group was found in {wait_s:g} s: {reasons or 'no address is known'}"
            ) from None

    async def _look_around(self) -> list[PeerObservation]:
        groups = await asyncio.gather(*(resolve(address) for address in self._addresses))
        endpoints = {endpoint for group in groups for endpoint in group}
        found = await asyncio.gather(*(self._discover(endpoint) for endpoint in sorted(endpoints)))
        return [one for one in found if one is not None and one.member_id != self._own_id]

    async def _discover(self, endpoint: Endpoint) -> PeerObservation | None:
        async with _channel(endpoint, self._credentials) as channel:
            stub: Any = rpc.DiscoveryStub(channel)
            try:
                answer = await stub.Discover(pb.DiscoverRequest(), timeout=_ANSWER_S)
            except grpc.aio.AioRpcError as failure:
                self._reasons[endpoint.target] = failure.details() or failure.code().name
                return None
        self._reasons[endpoint.target] = f"{answer.member_id} has no group yet"
        return PeerObservation(
            endpoint, answer.member_id, answer.raft_address, answer.cluster_id, dict(answer.members)
        )

    async def join(self, found: Found, raft_address: str) -> None:
        """Ask until this node votes. Raises InvalidArgument or PermissionDenied when it can never
        be."""
        request = pb.JoinRequest(member_id=self._own_id, address=raft_address)
        waits_for = ""
        while True:
            response = await self._ask_leader(found.endpoints, request)
            if response is not None and response.votes:
                LOG.info("this node is a voter of its group")
                return
            if response is not None and response.waits_for != waits_for:
                waits_for = response.waits_for
                LOG.info("joining: %s", waits_for)
            await asyncio.sleep(_PAUSE_S)

    async def _ask_leader(
        self, endpoints: Sequence[Endpoint], request: pb.JoinRequest
    ) -> pb.JoinResponse | None:
        left = list(endpoints)
        while left:
            endpoint = left.pop(0)
            async with _channel(endpoint, self._credentials) as channel:
                stub: Any = rpc.DiscoveryStub(channel)
                try:
                    response: pb.JoinResponse = await stub.Join(request, timeout=_JOIN_S)
                    return response
                except grpc.aio.AioRpcError as failure:
                    error, leader = error_of_failure(failure)
            # These stay: asking again cannot help.
            if isinstance(error, InvalidArgument | PermissionDenied):
                raise error
            left = await _behind(error, leader, endpoint, left)
        return None


async def _behind(
    error: MetaError, leader: str, asked: Endpoint, left: list[Endpoint]
) -> list[Endpoint]:
    """The endpoints to ask next: the leader alone, if it was named."""
    if isinstance(error, NotLeader) and leader:
        return [one for one in await resolve(leader) if one.target != asked.target][:1]
    return left
