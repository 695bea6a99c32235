"""Load on a group of members, and what its clients saw."""

from __future__ import annotations

import asyncio
import contextlib
import time

from meta_service.api.client import RemoteClient
from meta_service.api.errors import MetaError
from meta_service.api.types import Compare, Put
from tests.support.meta_linearizability import NEVER, Call, is_linearizable


class Load:
    """Writers of unique keys, ids, and compare-and-set on one register."""

    def __init__(self, client: RemoteClient, writers: int = 12, pause_s: float = 0.0) -> None:
        self._client = client
        self._writers = writers
        self._pause_s = pause_s
        self._tasks: list[asyncio.Task[None]] = []
        self.acked: dict[str, int] = {}
        self.unknown: set[str] = set()
        self.failed = 0
        self.ids: list[int] = []
        self.calls: list[Call] = []
        self.last_ack = time.monotonic()
        self.gap_s_max = 0.0
        """Longest time without any acknowledged write."""

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._write(n)) for n in range(self._writers)]
        self._tasks += [asyncio.create_task(self._allocate()) for _ in range(2)]
        self._tasks += [asyncio.create_task(self._compare_and_set(n)) for n in range(3)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _note_ack(self) -> None:
        now = time.monotonic()
        self.gap_s_max = max(self.gap_s_max, now - self.last_ack)
        self.last_ack = now

    async def _write(self, writer: int) -> None:
        number = 0
        while True:
            number += 1
            key = f"w/{writer}/{number}"
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
                self.ids.extend(await self._client.allocate_ids("load", 1))
            await asyncio.sleep(0.01)

    async def _compare_and_set(self, number: int) -> None:
        count = 0
        while True:
            count += 1
            with contextlib.suppress(MetaError):
                call = Call("read", None, time.monotonic())
                row = await self._client.get(b"register")
                call.end, call.result = time.monotonic(), row.value if row else None
                self.calls.append(call)
                value = b"%d.%d" % (number, count)
                call = Call("cas", (call.result, value), time.monotonic())
                self.calls.append(call)
                revision = row.mod_revision if row else 0
                held, _ = await self._client.txn(
                    [Compare(b"register", revision)], [Put(b"register", value)]
                )
                call.end, call.result = time.monotonic(), held
            await asyncio.sleep(0.05)

    async def check(self) -> None:
        """Everything acknowledged is there, once; no id came twice; the register is linear."""
        _, rows = await self._client.scan(b"w/")
        stored = {row.key.decode(): row for row in rows}
        missing = [key for key, rev in self.acked.items() if key not in stored]
        assert missing == [], f"{len(missing)} of {len(self.acked)} acknowledged writes are lost"
        for key, revision in self.acked.items():
            assert stored[key].mod_revision == revision
            assert stored[key].version == 1, f"{key} was applied twice"
        assert len(set(self.ids)) == len(self.ids), "an id was handed out twice"
        answered = sum(call.end != NEVER for call in self.calls)
        assert answered > 10
        assert is_linearizable(self.calls), "the register is not linearizable"
