"""A disk and a store in memory that lose what was not synced, as a power cut would."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from lakemq.meta_service.catalog.tables import STATE_KEY, State, decode_state, pack, unpack
from lakemq.meta_service.raft.state import SnapshotSink


class PowerCut(BaseException):
    """The machine died in the middle of a disk operation."""


class _Inode:
    """Content of one file: what is durable, and what was done to it since."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.current = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []
        """(position, data written) or (size, None) for a truncation."""

    def do(self, position: int, data: bytes | None) -> None:
        _apply(self.current, position, data)
        self.pending.append((position, data))

    def sync(self) -> None:
        self.durable = bytearray(self.current)
        self.pending.clear()

    def lose_power(self, rng: random.Random) -> None:
        """Any part of what was not synced may be on the disk, in any order."""
        for position, data in self.pending:
            fate = rng.random()
            if fate < 0.4:
                continue
            if data is not None and fate < 0.6:
                data = data[: rng.randrange(len(data) + 1)]
            _apply(self.durable, position, data)
        self.pending.clear()
        self.current = bytearray(self.durable)


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        del content[position:]
        content.extend(bytes(position - len(content)))
        return
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


class MemoryFile:
    """Implements `File`."""

    def __init__(self, disk: MemoryDisk, inode: _Inode) -> None:
        self._disk, self._inode = disk, inode

    def read(self) -> bytes:
        return bytes(self._inode.current)

    def write(self, position: int, data: bytes) -> None:
        self._disk.step()
        self._inode.do(position, data)

    def truncate(self, size: int) -> None:
        self._disk.step()
        self._inode.do(size, None)

    def sync(self) -> None:
        self._disk.step()
        self._disk.syncs += 1
        if not self._disk.lies:
            self._inode.sync()

    def close(self) -> None:
        pass


class MemoryDisk:
    """Implements `Disk`. Renames are durable at once, as `Disk.replace` promises."""

    def __init__(self) -> None:
        self._inodes: dict[str, _Inode] = {}
        self.steps = 0
        self.syncs = 0
        self.cut_at: int | None = None
        """Number of the operation at which the power goes."""
        self.full = False
        self.lies = False
        """Whether fsync does nothing."""

    def step(self) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.steps += 1
        if self.cut_at is not None and self.steps >= self.cut_at:
            raise PowerCut

    def exists(self, name: str) -> bool:
        return name in self._inodes

    def open(self, name: str, *, fresh: bool = False) -> MemoryFile:
        if fresh or name not in self._inodes:
            self.step()
            self._inodes[name] = _Inode()
        return MemoryFile(self, self._inodes[name])

    def replace(self, source: str, target: str) -> None:
        self.step()
        self._inodes[target] = self._inodes.pop(source)
        self.step()

    def remove(self, name: str) -> None:
        self._inodes.pop(name, None)

    def lose_power(self, rng: random.Random) -> None:
        self.cut_at = None
        for inode in self._inodes.values():
            inode.lose_power(rng)

    def damage(self, name: str, position: int) -> None:
        """Flip a bit that was durable."""
        inode = self._inodes[name]
        inode.durable[position] ^= 0x10
        inode.current[position] ^= 0x10


class MemoryStore:
    """Implements `WritableView`. A crash takes the newest batches, never one from the middle."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self._undo: list[dict[bytes, bytes | None]] = []

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((k, v) for k, v in self.rows.items() if k.startswith(prefix)))

    def state(self) -> State:
        return decode_state(self.get(STATE_KEY))

    def write(self, writes: Mapping[bytes, bytes | None]) -> None:
        self._undo.append({key: self.rows.get(key) for key in writes})
        self._put(writes)

    def _put(self, writes: Mapping[bytes, bytes | None]) -> None:
        for key, value in writes.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def sync(self) -> None:
        self._undo.clear()

    def mark(self) -> int:
        """How many batches `sync_to` shall make durable."""
        return len(self._undo)

    def sync_to(self, mark: int) -> None:
        del self._undo[:mark]

    def pack(self) -> bytes:
        return pack(sorted(self.rows.items()))

    def install(self, sink: SnapshotSink) -> None:
        assert isinstance(sink, MemorySink)
        self.rows = dict(unpack(bytes(sink.data)))
        self.sync()

    def lose_power(self, rng: random.Random) -> None:
        for _ in range(rng.randint(0, len(self._undo))):
            self._put(self._undo.pop())
        self._undo.clear()


class MemorySource:
    """Implements `SnapshotSource`."""

    def __init__(self, log_index: int, term: int, data: bytes) -> None:
        self.log_index, self.term, self.size = log_index, term, len(data)
        self._data = data

    def read(self, position: int, count: int) -> bytes:
        return self._data[position : position + count]

    def close(self) -> None:
        pass


class MemorySink:
    """Implements `SnapshotSink`."""

    def __init__(self, log_index: int, term: int, size: int) -> None:
        self.log_index, self.term, self.size = log_index, term, size
        self.data = bytearray()
        self._asked = 0

    @property
    def position(self) -> int:
        return len(self.data)

    def write(self, data: bytes) -> None:
        self.data += data

    def seal(self) -> None:
        pass

    def sealed(self) -> bool | None:
        self._asked += 1
        return None if self._asked < 2 else True

    def discard(self) -> None:
        pass
