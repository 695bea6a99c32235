"""A disk in memory that forgets, tears and fails as real ones may. Implements `Files`.

What a process reads is the page cache: everything it wrote. What a power loss leaves is less: of
each file what was synced, plus any pages of what was not, in any order; of each folder the names
that were synced, plus the first few of the changes that were not. A failed `sync` throws its pages
away but goes on showing them in the cache, as Linux does.

`lying_sync`, `lying_folder_sync` and `lying_truncate` plant the bugs that model tests must find;
the last one cuts files in the page cache alone.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PAGE_BYTES = 256
"""Smallest part of a write that survives or is lost on its own: small, to tear small batches."""

Fault = Callable[[str, Path], int]
"""(call, path) -> errno to fail with, or 0."""


@dataclass(eq=False)
class FileNode:
    cache: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)
    """Writes since the last sync; position -1: truncated to `int(data)`."""

    def write_back(self) -> None:
        """What was written since the last sync reaches the disk; what a failed sync threw away
        does not, though the cache goes on showing it."""
        for position, data in self.unsynced:
            if position < 0:
                del self.durable[int(data) :]
                continue
            if len(self.durable) < position:
                self.durable += bytes(position - len(self.durable))
            self.durable[position : position + len(data)] = data
        self.unsynced = []

    def after_power_loss(self, rng: random.Random) -> bytearray:
        left = bytearray(self.durable)
        for position, data in self.unsynced:
            if position < 0:
                if rng.random() < 0.5:
                    del left[int(data) :]
                continue
            for start in range(0, len(data), PAGE_BYTES):
                if rng.random() < 0.5:
                    page, at = data[start : start + PAGE_BYTES], position + start
                    if len(left) < at:
                        left += bytes(at - len(left))
                    left[at : at + len(page)] = page
        return left


@dataclass(eq=False)
class FolderNode:
    names: dict[str, FileNode | FolderNode] = field(default_factory=dict)
    durable: dict[str, FileNode | FolderNode] = field(default_factory=dict)


@dataclass
class Change:
    """A change of names that happens at once: (folder, name, what it names now)."""

    parts: list[tuple[FolderNode, str, FileNode | FolderNode | None]]

    def apply(self) -> None:
        for folder, name, node in self.parts:
            if node is None:
                folder.durable.pop(name, None)
            else:
                folder.durable[name] = node


class SimulatedFile:
    def __init__(self, disk: SimulatedDisk, path: Path, node: FileNode) -> None:
        self._disk, self._path, self._node = disk, path, node
        self._life = disk.life
        disk.open_handles += 1

    def _alive(self) -> FileNode:
        assert self._life == self._disk.life, "a handle outlived its process"
        return self._node

    def write_at(self, position: int, buffers: Sequence[bytes]) -> None:
        node, data = self._alive(), b"".join(buffers)
        failure = self._disk.failure("write", self._path)
        grows = max(0, position + len(data) - len(node.cache))
        if grows > self._disk.free:
            failure = errno.ENOSPC
        if failure:
            data = data[: self._disk.rng.randrange(len(data) + 1)]
            data = data[: max(0, len(node.cache) + self._disk.free - position)]
        if len(node.cache) < position:
            node.cache += bytes(position - len(node.cache))
        before = len(node.cache)
        node.cache[position : position + len(data)] = data
        self._disk.used += len(node.cache) - before
        node.unsynced.append((position, bytes(data)))
        if failure:
            raise OSError(failure, f"simulated, writing {self._path.name}")

    def read_at(self, position: int, size: int) -> bytes:
        failure = self._disk.failure("read", self._path)
        if failure:
            raise OSError(failure, f"simulated, reading {self._path.name}")
        return bytes(self._alive().cache[position : position + size])

    def sync(self) -> None:
        node = self._alive()
        failure = self._disk.failure("sync", self._path)
        if failure:
            keep = node.after_power_loss(self._disk.rng)
            node.durable, node.unsynced = keep, []
            raise OSError(failure, f"simulated, syncing {self._path.name}")
        if not self._disk.lying_sync:
            node.write_back()

    def truncate(self, size: int) -> None:
        node = self._alive()
        failure = self._disk.failure("truncate", self._path)
        if failure:
            raise OSError(failure, f"simulated, truncating {self._path.name}")
        self._disk.used -= max(0, len(node.cache) - size)
        del node.cache[size:]
        if not self._disk.lying_truncate:
            node.unsynced.append((-1, b"%d" % size))

    def size(self) -> int:
        return len(self._alive().cache)

    def close(self) -> None:
        if self._life == self._disk.life:
            self._disk.open_handles -= 1


class SimulatedDisk:
    def __init__(self, rng: random.Random, capacity_bytes: int = 1 << 40) -> None:
        self.rng = rng
        self.root = FolderNode()
        self.pending: list[Change] = []
        self.capacity_bytes = capacity_bytes
        self.used = 0
        self.life = 0
        self.calls = 0
        self.open_handles = 0
        self.fault: Fault | None = None
        self.lying_sync = False
        self.lying_folder_sync = False
        self.lying_truncate = False

    @property
    def free(self) -> int:
        return max(0, self.capacity_bytes - self.used)

    def failure(self, call: str, path: Path) -> int:
        self.calls += 1
        return self.fault(call, path) if self.fault is not None else 0

    def _check(self, call: str, path: Path) -> None:
        failure = self.failure(call, path)
        if failure:
            raise OSError(failure, f"simulated {call} of {path.name}")

    # ------------------------------------------------------------ crashes

    def kill_process(self) -> None:
        """Handles die; the page cache lives on."""
        self.life += 1
        self.open_handles = 0
        self.fault = None

    def lose_power(self) -> None:
        """What was not synced is lost, kept or torn, as the generator decides."""
        self.kill_process()
        kept: dict[int, bool] = {}
        for change in self.pending:
            folders = [id(folder) for folder, _, _ in change.parts]
            for folder in folders:
                kept[folder] = kept.get(folder, True) and self.rng.random() < 0.5
            if all(kept[folder] for folder in folders):
                change.apply()
            else:
                for folder in folders:
                    kept[folder] = False
        self.pending = []
        self.used = 0
        self._settle(self.root)

    def _settle(self, folder: FolderNode) -> None:
        folder.names = dict(folder.durable)
        for node in folder.names.values():
            if isinstance(node, FolderNode):
                self._settle(node)
                continue
            node.cache = node.after_power_loss(self.rng)
            node.durable, node.unsynced = bytearray(node.cache), []
            self.used += len(node.cache)

    def flip_bit(self, path: Path, position: int, bit: int) -> None:
        node = self._file(path)
        node.cache[position] ^= 1 << bit
        node.durable[position] ^= 1 << bit

    # ------------------------------------------------------------ names

    def _folder(self, path: Path) -> FolderNode:
        node: FileNode | FolderNode = self.root
        for name in path.parts[1:]:
            if not isinstance(node, FolderNode) or name not in node.names:
                raise FileNotFoundError(errno.ENOENT, "no such folder", str(path))
            node = node.names[name]
        if not isinstance(node, FolderNode):
            raise NotADirectoryError(errno.ENOTDIR, "no folder", str(path))
        return node

    def _file(self, path: Path) -> FileNode:
        node = self._folder(path.parent).names.get(path.name)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node

    def _change(self, *parts: tuple[FolderNode, str, FileNode | FolderNode | None]) -> None:
        for folder, name, node in parts:
            if node is None:
                folder.names.pop(name, None)
            else:
                folder.names[name] = node
        self.pending.append(Change(list(parts)))

    # ------------------------------------------------------------ Files

    def create(self, path: Path) -> SimulatedFile:
        self._check("create", path)
        folder = self._folder(path.parent)
        node = folder.names.get(path.name)
        if isinstance(node, FileNode):
            self.used -= len(node.cache)
            node.cache.clear()
            node.unsynced.append((-1, b"0"))
        else:
            node = FileNode()
            self._change((folder, path.name, node))
        return SimulatedFile(self, path, node)

    def open(self, path: Path, *, writable: bool = False) -> SimulatedFile:
        self._check("open", path)
        return SimulatedFile(self, path, self._file(path))

    def read(self, path: Path) -> bytes:
        self._check("read", path)
        return bytes(self._file(path).cache)

    def size(self, path: Path) -> int:
        return len(self._file(path).cache)

    def rename(self, old: Path, new: Path) -> None:
        self._check("rename", new)
        source, target = self._folder(old.parent), self._folder(new.parent)
        node = source.names.get(old.name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(old))
        replaced = target.names.get(new.name)
        if isinstance(replaced, FileNode):
            self.used -= len(replaced.cache)
        self._change((source, old.name, None), (target, new.name, node))

    def remove(self, path: Path) -> None:
        self._check("remove", path)
        folder = self._folder(path.parent)
        node = folder.names.get(path.name)
        if isinstance(node, FileNode):
            self.used -= len(node.cache)
            self._change((folder, path.name, None))

    def make_folder(self, path: Path) -> None:
        self._check("make_folder", path)
        folder = self.root
        for name in path.parts[1:]:
            node = folder.names.get(name)
            if node is None:
                node = FolderNode()
                self._change((folder, name, node))
            assert isinstance(node, FolderNode)
            folder = node

    def remove_folder(self, path: Path) -> None:
        folder = self._folder(path)
        for name, node in list(folder.names.items()):
            if isinstance(node, FolderNode):
                self.remove_folder(path / name)
            else:
                self.remove(path / name)
        self._change((self._folder(path.parent), path.name, None))

    def sync_folder(self, path: Path) -> None:
        self._check("sync_folder", path)
        if self.lying_folder_sync:
            return
        folder = self._folder(path)
        left = []
        for change in self.pending:
            if any(part[0] is folder for part in change.parts):
                change.apply()
            else:
                left.append(change)
        self.pending = left

    def names(self, path: Path) -> list[str]:
        try:
            return sorted(self._folder(path).names)
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        try:
            return path.name in self._folder(path.parent).names
        except FileNotFoundError:
            return False

    def free_bytes(self, path: Path) -> int:
        return self.free
