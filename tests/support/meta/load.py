"""Load on a group of members, and what its clients saw."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time

from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.types import Compare, Delete, Put
from tests.support.meta.linearizability import NEVER, Call, is_linearizable

_ENOUGH_S = 120.0


class Load:
    """Writers of unique keys, ids, and compare-and-set on one register."""

    def __init__(self, client: RemoteClient, writers: int = 12, pause_s: float = 0.0) -> None:
        self._client = client
        self._writers = writers
        self._pause_s = pause_s
        self._tasks: list[asyncio.Task[None]] = []
        # A group may bear the load of several tests, one after another.
        self._prefix = f"{os.urandom(4).hex()}/"
        self._register, self._lock_key = (
            f"{self._prefix}register".encode(),
            f"{self._prefix}lock".encode(),
        )
        self.acked: dict[str, int] = {}
        self.unknown: set[str] = set()
        self.failed = 0
        self.ids: list[tuple[float, float, int]] = []
        """(begin, end, id) of every id got."""
        self.held: list[tuple[float, float, int]] = []
        """(from, until, fencing token) of every time the lock was surely held."""
        self.calls: list[Call] = []
        self.last_ack = time.monotonic()
        self.gap_max_s = 0.0
        """Longest time without any acknowledged write."""

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._write(n)) for n in range(self._writers)]
        self._tasks += [asyncio.create_task(self._allocate()) for _ in range(2)]
        self._tasks += [asyncio.create_task(self._compare_and_set(n)) for n in range(3)]
        self._tasks += [asyncio.create_task(self._lock(n)) for n in range(3)]

    async def stop(self) -> None:
        """Once enough happened for `check` to say something, however slow the machine is."""
        async with asyncio.timeout(_ENOUGH_S):
            while True:
                if self._has_enough():
                    break
                await asyncio.sleep(0.02)
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _has_enough(self) -> bool:
        answered = sum(call.end != NEVER for call in self.calls)
        return len(self.acked) > 100 and len(self.held) > 5 and answered > 10 and bool(self.ids)

    def _note_ack(self) -> None:
        now = time.monotonic()
        self.gap_max_s = max(self.gap_max_s, now - self.last_ack)
        self.last_ack = now

    async def _write(self, writer: int) -> None:
        number = 0
        while True:
            number += 1
            key = f"{self._prefix}w/{writer}/{number}"
            try:
                self.acked[key] = await self._client.put(key.encode(), b"x" * 100)
                self._note_ack()
            except MetaError as error:
                self.failed += 1
                if not error.definite:
                    self.unknown.add(key)
            await asyncio.sleep(self._pause_s)

    async def _allocate(self) -> None:
        while True:
            with contextlib.suppress(MetaError):
                begin = time.monotonic()
                (number,) = await self._client.allocate_ids("load", 1)
                self.ids.append((begin, time.monotonic(), number))
            await asyncio.sleep(0.01)

    async def _compare_and_set(self, number: int) -> None:
        count = 0
        while True:
            count += 1
            with contextlib.suppress(MetaError):
                call = Call("read", None, time.monotonic())
                row = await self._client.get(self._register)
                call.end, call.result = time.monotonic(), row.value if row else None
                self.calls.append(call)
                value = b"%d.%d" % (number, count)
                call = Call("cas", (call.result, value), time.monotonic())
                self.calls.append(call)
                revision = row.mod_revision if row else 0
                held, _ = await self._client.txn(
                    [Compare(self._register, revision)], [Put(self._register, value)]
                )
                call.end, call.result = time.monotonic(), held
            await asyncio.sleep(0.05)

    async def _lock(self, number: int) -> None:
        """Take the lock when it is free, keep it for a moment, give it back."""
        owner = b"%d" % number
        while True:
            with contextlib.suppress(MetaError):
                row = await self._client.get(self._lock_key)
                if row is not None and row.value == owner:  # an answer got lost: it is ours
                    await self._give_back(row.mod_revision)
                elif row is None:
                    held, token = await self._client.txn(
                        [Compare(self._lock_key, 0)], [Put(self._lock_key, owner)]
                    )
                    if held:
                        since = time.monotonic()
                        await asyncio.sleep(0.01)
                        self.held.append((since, time.monotonic(), token))
                        await self._give_back(token)
            await asyncio.sleep(0.02)

    async def _give_back(self, token: int) -> None:
        await self._client.txn([Compare(self._lock_key, token)], [Delete(self._lock_key)])

    async def check(self) -> None:
        """Everything acknowledged is there, once; no id came twice; the register is linear."""
        _, rows = await self._client.scan(f"{self._prefix}w/".encode())
        stored = {row.key.decode(): row for row in rows}
        missing = [key for key, rev in self.acked.items() if key not in stored]
        assert missing == [], f"{len(missing)} of {len(self.acked)} acknowledged writes are lost"
        for key, revision in self.acked.items():
            assert stored[key].mod_revision == revision
            assert stored[key].version == 1, f"{key} was applied twice"
        _check_order(sorted(self.ids), "ids")
        held = sorted(self.held)
        for (_, until, _), (since, _, _) in itertools.pairwise(held):
            assert since >= until, "two clients held the lock at once"
        _check_order(held, "fencing tokens")
        assert self._has_enough()
        assert is_linearizable(self.calls), "the register is not linearizable"


def _check_order(entries: list[tuple[float, float, int]], what: str) -> None:
    """No number twice, and what ended before another began has the smaller one."""
    numbers = [number for _, _, number in entries]
    assert len(set(numbers)) == len(numbers), f"{what}: a number came twice"
    newest = sorted(entries, key=lambda entry: entry[2])
    begun = float("-inf")
    for begin, end, _ in newest:
        assert end >= begun, f"{what} went back"
        begun = max(begun, begin)
