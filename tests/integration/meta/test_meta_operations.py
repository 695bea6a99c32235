"""`lakemq meta`: what operators do, on running members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lakemq.cli.meta_commands import meta
from lakemq.meta_service.api.errors import InvalidArgument, StartupFailed
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.catalog.command_codec import FEATURE_LEVEL
from lakemq.meta_service.server.member import MetaMember
from lakemq.meta_service.storage.backup import restore
from tests.support.node.ports import free_ports


def member_in(folder: Path) -> MetaMember:
    return MetaMember(MetaSettings(port=0), node_id="n1", host="127.0.0.1", data_dir=folder)


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[MetaMember]:
    member = member_in(tmp_path / "meta")
    await member.start()
    yield member
    await member.stop()


@pytest.fixture
async def members(tmp_path: Path) -> AsyncIterator[list[MetaMember]]:
    """Three members in this process, the leader first."""
    ports = free_ports(3)
    names = {f"n{n}": f"127.0.0.1:{port}" for n, port in enumerate(ports)}
    group = [
        MetaMember(
            MetaSettings(port=0, raft_port=port, members=names),
            node_id=f"n{n}",
            host="127.0.0.1",
            data_dir=tmp_path / f"n{n}",
        )
        for n, port in enumerate(ports)
    ]
    await asyncio.gather(*(member.start() for member in group))
    leader = group[0].status().leader_id
    yield sorted(group, key=lambda member: member.status().member_id != leader)
    await asyncio.gather(*(member.stop() for member in group))


async def run(*arguments: str) -> Result:
    """In a thread: the command has an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, meta, list(arguments))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.05)


def at(*members: MetaMember) -> list[str]:
    return [part for member in members for part in ("--address", member.addresses()["meta"])]


async def test_status_names_the_leader(members: list[MetaMember]) -> None:
    result = await run("status", *at(*members))
    assert result.exit_code == 0, result.output
    assert result.output.count("follower") == 2
    assert members[0].status().member_id in result.output


async def test_a_status_is_a_table_that_is_never_cut_off(members: list[MetaMember]) -> None:
    result = await run("status", "--details", *at(*members))
    heading, *lines = (line.split() for line in result.output.splitlines())
    assert heading == [
        "address",
        "member",
        "role",
        "leader",
        "term",
        "applied",
        "revision",
        "cluster",
    ]
    for line, member in zip(lines, members, strict=False):
        told = member.status()
        assert line[:2] == [member.addresses()["meta"], told.member_id]
        assert line[-1] == told.cluster_id
    levels = range(1, FEATURE_LEVEL + 1)
    assert any(["feature_level:", str(level)] in lines for level in levels)


async def test_status_of_a_member_that_is_away_is_an_error() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    result = await run("status", "--address", address)
    assert result.exit_code == 3
    assert result.output.startswith(f"{address}: no member can be reached: ")
    assert result.output.endswith("Connection refused\n")


async def test_members_are_listed(members: list[MetaMember]) -> None:
    result = await run("members", *at(members[1]))
    leader = members[0].status().member_id
    lines = result.output.split("\n")
    assert [line for line in lines if line] == [
        f"{name}  leader" if name == leader else name for name in ("n0", "n1", "n2")
    ]


async def test_digests_are_compared(members: list[MetaMember]) -> None:
    await members[0].client().put(b"a", b"1")
    async with asyncio.timeout(60):
        while True:  # a group that has just begun still writes of its own
            result = await run("digest", *at(*members))
            assert result.exit_code == 0, result.output
            if "different log indexes" not in result.output:
                break
    digests = [line.split()[-1] for line in result.output.strip().split("\n")]
    assert len(digests) == 3
    assert len(set(digests)) == 1


async def test_leadership_is_transferred(members: list[MetaMember]) -> None:
    await members[0].client().put(b"a", b"1")
    target = members[1].status().member_id
    result = await run("transfer", target, *at(members[2]))
    assert result.exit_code == 0, result.output
    await until(lambda: members[1].status().leader_id == target)
    assert await members[0].client().put(b"a", b"2") > 0


async def test_a_snapshot_is_made_on_demand(member: MetaMember, tmp_path: Path) -> None:
    await member.client().put(b"a", b"1")
    result = await run("snapshot", *at(member))
    assert result.exit_code == 0, result.output
    assert "durable up to log index" in result.output
    assert len(list((tmp_path / "meta").glob("snapshot-*"))) == 1
    again = await run("snapshot", *at(member))
    assert again.output == result.output


async def test_a_restored_cluster_has_everything_but_the_old_id(
    member: MetaMember, tmp_path: Path
) -> None:
    client = member.client()
    for number in range(50):
        await client.put(b"k%02d" % number, b"%d" % number)
    topic = await client.create_topic("t", 2, {"x": 1})
    file = tmp_path / "backup"
    result = await run("backup", str(file), *at(member))
    assert result.exit_code == 0, result.output
    assert file.stat().st_mode & 0o777 == 0o600, "it holds hashes of passwords"
    await client.put(b"later", b"not in the backup")

    result = await run("restore", str(file), str(tmp_path / "new"))
    assert result.exit_code == 0, result.output
    restored = member_in(tmp_path / "new" / "meta")
    await restored.start()
    assert restored.cluster_id != member.cluster_id
    assert result.output.strip() == f"cluster {restored.cluster_id}"
    client = restored.client()
    revision, rows = await client.scan(b"")
    assert [row.key for row in rows] == [b"k%02d" % number for number in range(50)]
    assert list((await client.topics())[1]) == [topic]
    assert await client.put(b"new", b"life") == revision + 1
    assert (await anext(aiter(client.watch(b"", 1)))).key == b"k00"
    await restored.stop()


async def test_a_group_is_restored_under_one_new_id(member: MetaMember, tmp_path: Path) -> None:
    await member.client().put(b"a", b"1")
    file = tmp_path / "backup"
    await run("backup", str(file), *at(member))
    ports = free_ports(3)
    names = {f"r{n}": f"127.0.0.1:{port}" for n, port in enumerate(ports)}
    new_id = ""
    group = []
    for n, port in enumerate(ports):
        new_id = restore(file, tmp_path / f"r{n}", new_id)
        settings = MetaSettings(port=0, raft_port=port, members=names)
        group.append(
            MetaMember(settings, node_id=f"r{n}", host="127.0.0.1", data_dir=tmp_path / f"r{n}")
        )
    await asyncio.gather(*(one.start() for one in group))
    assert {one.cluster_id for one in group} == {new_id}
    row = await group[1].client().get(b"a")
    assert row is not None and row.value == b"1"
    await group[2].client().put(b"b", b"2")
    await asyncio.gather(*(one.stop() for one in group))


async def test_a_member_of_the_old_cluster_cannot_join_the_restored_one(
    member: MetaMember, tmp_path: Path
) -> None:
    await member.client().put(b"a", b"1")
    file = tmp_path / "backup"
    await run("backup", str(file), *at(member))
    await member.stop()
    ports = free_ports(3)
    names = {f"n{n}": f"127.0.0.1:{port}" for n, port in enumerate(ports)}
    patience_s = [60.0, 4.0, 60.0]
    new_id = restore(file, tmp_path / "n0")
    restore(file, tmp_path / "n2", new_id)
    (tmp_path / "meta").rename(tmp_path / "n1")
    group = [
        MetaMember(
            MetaSettings(port=0, raft_port=port, members=names, start_max_s=patience_s[n]),
            node_id=f"n{n}",
            host="127.0.0.1",
            data_dir=tmp_path / f"n{n}",
        )
        for n, port in enumerate(ports)
    ]
    joining = asyncio.create_task(group[1].start())
    await asyncio.gather(group[0].start(), group[2].start())
    with pytest.raises(StartupFailed, match=rf"'n1' belongs to cluster .*{new_id}"):
        await joining
    assert group[0].cluster_id == group[2].cluster_id == new_id
    assert await group[0].client().put(b"b", b"2") > 0
    await asyncio.gather(group[0].stop(), group[2].stop())


async def test_a_group_grows_and_shrinks_while_it_works(
    members: list[MetaMember], tmp_path: Path
) -> None:
    client = members[0].client()
    for number in range(200):
        await client.put(b"k%d" % number, b"v")
    joining = MetaMember(
        MetaSettings(port=0, raft_port=0, join=[members[2].addresses()["meta"]]),
        node_id="n9",
        host="127.0.0.1",
        data_dir=tmp_path / "n9",
    )
    await joining.start()
    await until(lambda: not members[0].status().detail["learners"])
    assert "n9" in (await run("members", *at(members[2]))).output.split()
    assert joining.cluster_id == members[0].cluster_id
    row = await joining.client().get(b"k199")
    assert row is not None and row.value == b"v"
    refused = await run("promote", "n9", *at(members[2]))
    assert refused.exit_code == 1 and "n9 is not a learner" in refused.output

    gone = next(m for m in members if m.status().member_id != m.status().leader_id)
    gone_id = gone.status().member_id
    left = [m for m in members if m is not gone]
    result = await run("remove", gone_id, *at(left[1]))
    assert result.exit_code == 0, result.output
    assert gone_id not in result.output
    await gone.stop()
    # With the old folder it would wait for a majority that never answers: it is told why instead.
    began = time.monotonic()
    with pytest.raises(StartupFailed, match=f"'{gone_id}' is not a member any more.*empty folder"):
        await gone.start()
    assert time.monotonic() - began < gone._settings.start_max_s / 2
    assert await joining.client().put(b"after", b"1") > 0
    assert set(joining.status().members) == {"n0", "n1", "n2", "n9"} - {gone_id}
    await joining.stop()


async def test_a_leader_hands_over_before_it_is_removed(members: list[MetaMember]) -> None:
    await members[0].client().put(b"a", b"1")
    leader = members[0].status().member_id
    result = await run("remove", leader, *at(members[0], members[1]))
    assert result.exit_code == 0, result.output
    assert leader not in result.output
    left = members[1]
    assert left.status().leader_id not in (leader, None)
    assert set(left.status().members) == {"n0", "n1", "n2"} - {leader}
    assert await left.client().put(b"a", b"2") > 0


async def test_a_dead_member_is_removed_and_another_joins(
    members: list[MetaMember], tmp_path: Path
) -> None:
    dead = members[2].status().member_id
    await members[2].stop()
    await asyncio.sleep(0.5)
    last = await run("remove", members[1].status().member_id, *at(*members[:2]))
    assert last.exit_code == 1 and "only 1 of the 2 voters" in last.output
    result = await run("remove", dead, *at(*members[:2]))
    assert result.exit_code == 0, result.output
    fresh = MetaMember(
        MetaSettings(port=0, raft_port=0, join=[members[0].addresses()["meta"]]),
        node_id=dead,
        host="127.0.0.1",
        data_dir=tmp_path / "fresh",
    )
    await fresh.start()
    await until(lambda: dead in fresh.status().members and not fresh.status().detail["learners"])
    assert await fresh.client().put(b"a", b"2") > 0
    await fresh.stop()


async def test_a_backup_never_overwrites(member: MetaMember, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    file.write_text("precious")
    result = await run("backup", str(file), *at(member))
    assert result.exit_code == 1
    assert "exists already" in result.output
    assert file.read_text() == "precious"


async def test_a_restore_never_overwrites(member: MetaMember, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    await run("backup", str(file), *at(member))
    with pytest.raises(InvalidArgument, match="not empty"):
        restore(file, tmp_path / "meta")


@pytest.mark.parametrize("place", [3, 30, 100, -20])
async def test_a_damaged_backup_is_refused(member: MetaMember, tmp_path: Path, place: int) -> None:
    await member.client().put(b"a", bytes(1000))
    file = tmp_path / "backup"
    await run("backup", str(file), *at(member))
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    with pytest.raises(InvalidArgument, match="backup"):
        restore(file, tmp_path / "new")


async def test_a_backup_cut_short_is_refused(member: MetaMember, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    await run("backup", str(file), *at(member))
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(InvalidArgument, match="cut short"):
        restore(file, tmp_path / "new")
