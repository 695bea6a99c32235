"""How members find each other: a group is joined through any member, or founded behind a name."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lakemq.meta_service.api.errors import StartupFailed
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.server.joining import Endpoint, Found, PeerObservation, choose
from lakemq.meta_service.server.member import MetaMember
from tests.support.meta.group import Certificates
from tests.support.node.ports import free_ports


class Nodes:
    """Members in this process; all are stopped at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[MetaMember] = []

    def make(
        self, name: str, *, data: str = "", host: str = "127.0.0.1", **settings: Any
    ) -> MetaMember:
        member = MetaMember(
            MetaSettings(**{"port": 0, "raft_port": 0, "start_max_s": 20.0, **settings}),
            node_id=name,
            host=host,
            data_dir=self.folder / (data or name),
        )
        self.running.append(member)
        return member

    async def start(self, name: str, **settings: Any) -> MetaMember:
        member = self.make(name, **settings)
        await member.start()
        return member

    async def stop(self, member: MetaMember) -> None:
        self.running.remove(member)
        await member.stop()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    nodes = Nodes(tmp_path)
    yield nodes
    await asyncio.gather(*(member.stop() for member in nodes.running))


def api(member: MetaMember) -> str:
    return member.addresses()["meta"]


async def voters(member: MetaMember, *names: str) -> None:
    """Wait until exactly those vote, as the member knows it."""
    async with asyncio.timeout(60):
        while True:
            status = member.status()
            if status.members == names and not status.detail["learners"]:
                return
            await asyncio.sleep(0.02)


async def first(nodes: Nodes) -> MetaMember:
    """A group of one that others may join."""
    (port,) = free_ports(1)
    return await nodes.start("n1", raft_port=port, members={"n1": f"127.0.0.1:{port}"})


async def test_nodes_join_through_any_member(nodes: Nodes) -> None:
    n1 = await first(nodes)
    await n1.client().put(b"before", b"1")
    n2 = await nodes.start("n2", join=[api(n1)])
    await voters(n1, "n1", "n2")
    n3 = await nodes.start("n3", join=["127.0.0.1:1", api(n2)])
    await voters(n2, "n1", "n2", "n3")
    assert n1.cluster_id == n2.cluster_id == n3.cluster_id
    row = await n3.client().get(b"before")
    assert row is not None and row.value == b"1"
    await nodes.stop(n1)
    async with asyncio.timeout(60):
        assert await n3.client().put(b"after", b"1") > 0


async def test_a_member_that_joined_starts_again_with_the_same_settings(nodes: Nodes) -> None:
    n1 = await first(nodes)
    (port,) = free_ports(1)
    n2 = await nodes.start("n2", raft_port=port, join=[api(n1)])
    await voters(n1, "n1", "n2")
    await nodes.stop(n2)
    n2 = await nodes.start("n2", raft_port=port, join=["gone.invalid:9701"])
    assert await n2.client().put(b"a", b"1") > 0
    await nodes.stop(n2)
    with pytest.raises(StartupFailed, match=r"set meta\.members or meta\.join"):
        await nodes.start("n2", raft_port=port)


async def test_a_member_whose_disk_was_replaced_is_the_same_member_again(nodes: Nodes) -> None:
    n1 = await first(nodes)
    n2 = await nodes.start("n2", join=[api(n1)])
    (port,) = free_ports(1)
    n3 = await nodes.start("n3", raft_port=port, join=[api(n1)])
    await voters(n1, "n1", "n2", "n3")
    await n1.client().put(b"kept", b"1")
    await nodes.stop(n3)
    n3 = await nodes.start("n3", data="n3-new", raft_port=port, join=[api(n1), api(n2)])
    async with asyncio.timeout(60):
        while True:
            if not n3.status().detail["catching_up"]:
                break
            await asyncio.sleep(0.02)
    row = await n3.client().get(b"kept", stale=True)
    assert row is not None
    assert n1.status().members == ("n1", "n2", "n3")


async def test_a_taken_id_is_refused(nodes: Nodes) -> None:
    n1 = await first(nodes)
    await nodes.start("n2", join=[api(n1)])
    await voters(n1, "n1", "n2")
    with pytest.raises(StartupFailed, match="n2 is a voter at"):
        await nodes.start("n2", data="other", join=[api(n1)])


async def test_nothing_to_join_is_said_clearly(nodes: Nodes) -> None:
    with pytest.raises(StartupFailed, match=r"no group was found in 0\.5 s: 127\.0\.0\.1:1: "):
        await nodes.start("n2", join=["127.0.0.1:1"], start_max_s=0.5)
    with pytest.raises(StartupFailed, match="is not host:port"):
        await nodes.start("n3", join=["somewhere"], start_max_s=0.5)
    with pytest.raises(StartupFailed, match="cannot both be set"):
        await nodes.start("n4", join=["a:1"], members={"n4": "a:1"})
    with pytest.raises(StartupFailed, match=r"set meta\.advertise"):
        await nodes.start("n5", join=["a:1"], host="0.0.0.0")


async def test_three_nodes_behind_one_name_found_a_group(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a headless service: one name, many addresses, the same port everywhere."""
    (port,) = free_ports(1)
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    plain = asyncio.get_running_loop().getaddrinfo

    async def getaddrinfo(host: Any, at: Any, **options: Any) -> Any:
        if host != "meta.lakemq.test":
            return await plain(host, at, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, at)) for one in hosts]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    group = [
        nodes.make(name, host=host, port=port, join=[f"meta.lakemq.test:{port}"], expect=3)
        for name, host in zip(("n3", "n1", "n2"), hosts, strict=True)
    ]
    await asyncio.gather(*(member.start() for member in group))
    assert len({member.cluster_id for member in group}) == 1
    for member in group:
        await voters(member, "n1", "n2", "n3")
    assert await group[0].client().put(b"a", b"1") > 0


async def test_a_node_joins_only_under_a_name_of_its_certificate(
    nodes: Nodes, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path / "tls")
    (port,) = free_ports(1)
    n1 = await nodes.start(
        "n1",
        raft_port=port,
        members={"n1": f"127.0.0.1:{port}"},
        nodes=["n3", "n9*"],
        **certificates.sign("n1"),
    )
    with pytest.raises(StartupFailed, match="'n2'.*names neither a node"):
        await nodes.start("n2", join=[api(n1)], start_max_s=1.0, **certificates.sign("n2"))
    with pytest.raises(StartupFailed, match="the certificate does not name 'n2'"):
        await nodes.start("n2", join=[api(n1)], **certificates.sign("n9"))
    n3 = await nodes.start("n3", join=[api(n1)], **certificates.sign("n3"))
    await voters(n3, "n1", "n3")


async def test_certificates_that_may_join_found_a_group(nodes: Nodes, tmp_path: Path) -> None:
    """They ask each other before any of them is a member of anything."""
    certificates = Certificates(tmp_path / "tls")
    ports = free_ports(3)
    join = [f"127.0.0.1:{port}" for port in ports]
    group = [
        nodes.make(name, port=port, join=join, expect=3, nodes=["n*"], **certificates.sign(name))
        for name, port in zip(("n3", "n1", "n2"), ports, strict=True)
    ]
    await asyncio.gather(*(member.start() for member in group))
    for member in group:
        await voters(member, "n1", "n2", "n3")
    assert await group[0].client().put(b"a", b"1") > 0


def sighting(name: str, cluster: str = "", **members: str) -> PeerObservation:
    return PeerObservation(Endpoint(f"{name}:1", name), name, f"{name}:2", cluster, members)


def test_only_the_smallest_of_exactly_as_many_as_expected_founds_a_group() -> None:
    others = [sighting("b"), sighting("c")]
    assert choose(others, "a", 3) is True
    assert choose(others, "d", 3) is False, "four see each other, three were expected"
    assert choose(others[:1], "a", 3) is False
    assert choose([sighting("a"), sighting("c")], "b", 3) is False
    assert choose(others, "a", 0) is False
    assert choose([], "a", 1) is True


def test_a_group_that_is_there_is_always_joined() -> None:
    seen = [sighting("b"), sighting("c", "id", c="c:2", d="d:2")]
    assert choose(seen, "a", 3) == Found({"c": "c:2", "d": "d:2"}, (seen[1].endpoint,))


def test_members_of_different_clusters_are_not_mixed() -> None:
    with pytest.raises(StartupFailed, match="different clusters: b is in x, c is in y"):
        choose([sighting("b", "x", b="b:2"), sighting("c", "y", c="c:2")], "a", 0)
