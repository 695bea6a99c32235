"""Goal: a certificate of the members' authority is not enough to administer a cluster: it must name
a node or an operator, whatever is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from lakemq.meta_service.api.errors import PermissionDenied
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import NodeRegistration
from lakemq.meta_service.proto import auth_pb2, discovery_pb2, meta_pb2, schemas_pb2
from lakemq.meta_service.server.member import MetaMember
from tests.support.meta.group import Certificates, channel_credentials
from tests.support.node.ports import free_ports

METHODS = [
    f"/{service.full_name}/{method.name}"
    for file in (auth_pb2, discovery_pb2, meta_pb2, schemas_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
WAIT_S = 30


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("tls"))
    for name in ("n1", "n2", "root", "device-7", "edge-3", "n1.device"):
        made.sign(name)
    return made


def shown(certificates: Certificates, name: str) -> grpc.ChannelCredentials:
    base = certificates.folder / name
    return channel_credentials(
        {
            "tls_cert": f"{base}.pem",
            "tls_key": f"{base}.key",
            "tls_ca": str(certificates.folder / "ca.pem"),
        }
    )


@pytest.fixture
async def member(certificates: Certificates, tmp_path: Path) -> AsyncIterator[MetaMember]:
    (raft_port,) = free_ports(1)
    settings = MetaSettings(
        port=0,
        raft_port=raft_port,
        members={"n1": f"127.0.0.1:{raft_port}"},
        operators=["root"],
        nodes=["edge-*"],
        **certificates.sign("n1"),
    )
    member = MetaMember(settings, node_id="n1", host="127.0.0.1", data_dir=tmp_path / "meta")
    await member.start()
    yield member
    await member.stop()


async def code_of(
    member: MetaMember, certificates: Certificates, name: str, method: str, request: bytes = b""
) -> grpc.StatusCode:
    """Of the first answer to an empty request; streams take it too."""
    address = member.addresses()["meta"]
    async with grpc.aio.secure_channel(address, shown(certificates, name)) as channel:
        call: Any = channel.stream_stream(method)(iter([request]), timeout=WAIT_S)
        try:
            await call.read()
        except grpc.aio.AioRpcError as error:
            return error.code()
        call.cancel()
        return grpc.StatusCode.OK


async def test_no_service_answers_a_device(member: MetaMember, certificates: Certificates) -> None:
    assert len(METHODS) > 35
    for name in ("device-7", "n1.device"):
        for method in METHODS:
            code = await code_of(member, certificates, name, method)
            assert code is grpc.StatusCode.PERMISSION_DENIED, (name, method)


async def test_nodes_and_operators_are_served(
    member: MetaMember, certificates: Certificates
) -> None:
    for name in ("n1", "root", "edge-3"):
        for method in ("/lakemq.meta.v1.Cluster/Status", "/lakemq.meta.v1.Maintenance/Backup"):
            code = await code_of(member, certificates, name, method)
            assert code is grpc.StatusCode.OK, (name, method)


async def test_a_registered_node_is_served(member: MetaMember, certificates: Certificates) -> None:
    status = "/lakemq.meta.v1.Cluster/Status"
    assert await code_of(member, certificates, "n2", status) is grpc.StatusCode.PERMISSION_DENIED
    await member.client().register_node(NodeRegistration("n2", {}, version="1"))
    assert await code_of(member, certificates, "n2", status) is grpc.StatusCode.OK


async def test_an_operator_is_no_node(member: MetaMember, certificates: Certificates) -> None:
    """Its certificate lets it administer, not vote."""
    join = "/lakemq.meta.v1.Discovery/Join"
    request = discovery_pb2.JoinRequest(member_id="root", address="127.0.0.1:1")
    code = await code_of(member, certificates, "root", join, request.SerializeToString())
    assert code is grpc.StatusCode.PERMISSION_DENIED


async def test_the_client_says_who_was_refused(
    member: MetaMember, certificates: Certificates
) -> None:
    client = RemoteClient([member.addresses()["meta"]], credentials=shown(certificates, "device-7"))
    with pytest.raises(PermissionDenied, match=r"'device-7'.*meta\.operators"):
        await client.put(b"a", b"1")
    await client.close()
