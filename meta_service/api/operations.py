"""Calls for operators, on members elsewhere."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc

from lakemq.meta_service.api.backup_head import BackupNote, encode_head
from lakemq.meta_service.api.convert import status_of
from lakemq.meta_service.api.errors import MetaError, NoLeader, NotLeader
from lakemq.meta_service.api.remote.failures import error_of_failure
from lakemq.meta_service.api.types import MetaStatus
from lakemq.meta_service.proto import meta_pb2 as pb
from lakemq.meta_service.proto import meta_pb2_grpc as rpc

T = TypeVar("T")
_TIMEOUT_S = 120.0
_STATUS_S = 5.0
_PAUSE_S = 0.2
_PATIENCE_S = 10.0
"""For an election, or for a member that starts again."""


def _channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(address)
    return grpc.aio.secure_channel(address, credentials)


async def status(address: str, credentials: grpc.ChannelCredentials | None) -> MetaStatus:
    """What that very member says of itself, asked once."""
    async with _channel(address, credentials) as channel:
        stub: Any = rpc.ClusterStub(channel)
        try:
            return status_of(await stub.Status(pb.StatusRequest(), timeout=_STATUS_S))
        except grpc.aio.AioRpcError as failure:
            raise error_of_failure(failure)[0] from failure


async def snapshot(address: str, credentials: grpc.ChannelCredentials | None) -> int:
    """Log index up to which the member's state is durable now."""
    async with _channel(address, credentials) as channel:
        stub: Any = rpc.MaintenanceStub(channel)
        try:
            response = await stub.Snapshot(pb.SnapshotRequest(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            raise error_of_failure(failure)[0] from failure
        return int(response.log_index)


async def _ask_leader(
    addresses: Sequence[str],
    credentials: grpc.ChannelCredentials | None,
    call: Callable[[Any], Any],
) -> tuple[str, Any]:
    """(address, answer) of the leader, found from any member."""

    async def ask(address: str) -> tuple[str, Any]:
        async with _channel(address, credentials) as channel:
            return address, await call(rpc.MaintenanceStub(channel))

    return await _at_leader(addresses, ask)


async def _at_leader(addresses: Sequence[str], ask: Callable[[str], Awaitable[T]]) -> T:
    """What the leader answers. While there is none, as after its death, this waits for the next."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return await _ask_around(addresses, ask)
        except (NotLeader, NoLeader):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_PAUSE_S)


async def _ask_around(addresses: Sequence[str], ask: Callable[[str], Awaitable[T]]) -> T:
    """Each member once, and who is named as the leader."""
    left = list(addresses)
    asked: set[str] = set()
    last: MetaError = NoLeader("no member was asked")
    while left:
        address = left.pop(0)
        asked.add(address)
        try:
            return await ask(address)
        except grpc.aio.AioRpcError as failure:
            last, leader = error_of_failure(failure)
        if isinstance(last, NotLeader) and leader and leader not in asked:
            left.insert(0, leader)
        elif not isinstance(last, NotLeader | NoLeader):
            left = []  # whether it was done or refused, it is not to be done elsewhere
    raise last


async def transfer(
    addresses: Sequence[str], member_id: str, credentials: grpc.ChannelCredentials | None
) -> str:
    """Address of the leader that asked `member_id` to take over."""
    request = pb.TransferRequest(member_id=member_id)
    address, _ = await _ask_leader(
        addresses,
        credentials,
        lambda stub: stub.TransferLeadership(request, timeout=_TIMEOUT_S),
    )
    return address


async def _change_group(
    addresses: Sequence[str],
    credentials: grpc.ChannelCredentials | None,
    request: pb.ChangeGroupRequest,
) -> Sequence[str]:
    """The voters behind the change."""
    _, response = await _ask_leader(
        addresses, credentials, lambda stub: stub.ChangeGroup(request, timeout=_TIMEOUT_S)
    )
    return list(response.voters)


async def promote_member(
    addresses: Sequence[str], member_id: str, credentials: grpc.ChannelCredentials | None
) -> Sequence[str]:
    """The voters, of whom the member is one now. Raises InvalidArgument while it lacks the log."""
    request = pb.ChangeGroupRequest(change=pb.ChangeGroupRequest.PROMOTE, member_id=member_id)
    return await _change_group(addresses, credentials, request)


async def remove_member(
    addresses: Sequence[str], member_id: str, credentials: grpc.ChannelCredentials | None
) -> Sequence[str]:
    """The voters that are left. A leader hands its leadership over first."""
    request = pb.ChangeGroupRequest(change=pb.ChangeGroupRequest.REMOVE, member_id=member_id)
    return await _change_group(addresses, credentials, request)


async def backup(
    addresses: Sequence[str], file: Path, credentials: grpc.ChannelCredentials | None
) -> BackupNote:
    """Write a backup of the leader's state. Raises FileExistsError rather than overwrite."""
    return await _at_leader(addresses, lambda address: _backup_from(address, file, credentials))


class _BackupFile:
    """A file that appears under its name only when it is whole, and only its owner may read: it
    holds what passwords are checked against."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        if path.exists():
            raise FileExistsError(f"{path} exists already")
        self._partial.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self._partial, flags, 0o600), "wb")

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.link(self._partial, self._path)  # fails rather than overwrites
        self._partial.unlink()

    def abandon(self) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)


async def _backup_from(
    address: str, path: Path, credentials: grpc.ChannelCredentials | None
) -> BackupNote:
    note: BackupNote | None = None
    file = _BackupFile(path)
    try:
        async with _channel(address, credentials) as channel:
            stub: Any = rpc.MaintenanceStub(channel)
            async for chunk in stub.Backup(pb.BackupRequest()):
                if note is None:
                    note = BackupNote(chunk.log_index, chunk.term, chunk.size, chunk.cluster_id)
                    file.write(encode_head(note))
                file.write(chunk.data)
        if note is None:
            raise NoLeader("the member sent nothing")
        file.finish()
    except BaseException:
        file.abandon()
        raise
    return note
