"""Fuzz targets by name, the limit of CPU time that an input may take, and what targets share.

A target takes bytes and raises when the code under test is wrong: only the documented error class
may come out of a decoder, and the target lets nothing else of it pass.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import google_crc32c
import msgpack

GROUPS: Final = (
    "mqtt", "batches", "cluster", "coordination", "journal", "meta", "security", "schemas", "spark",
    "config",
)  # fmt: skip
"""Modules of `tests.fuzz.targets`; a target's name begins with its group's."""
BASE_MS: Final = 50
PER_BYTE_US: Final = 1
_REPEATS: Final = 4

Run = Callable[[bytes], None]


class Target(NamedTuple):
    name: str
    run: Run
    seeds: Sequence[bytes]
    """Where fuzzing begins."""
    bytes_max: int
    weight: int
    """How much CPU time one input takes, compared with a plain decoder."""


class SlowInput(AssertionError):
    """An input takes more CPU time than its size allows."""


_TARGETS: dict[str, Target] = {}


def target(
    name: str,
    *,
    seeds: Iterable[bytes] = (b"",),
    bytes_max: int = 8192,
    weight: int = 1,
) -> Callable[[Run], Run]:
    """Make a function known as a target."""

    def register(run: Run) -> Run:
        assert name not in _TARGETS and name.partition(".")[0] in GROUPS, name
        _TARGETS[name] = Target(name, run, tuple(seeds), bytes_max, weight)
        return run

    return register


def targets(group: str | None = None) -> dict[str, Target]:
    """The targets of a group, or all."""
    for each in GROUPS if group is None else (group,):
        importlib.import_module(f"tests.fuzz.targets.{each}")
    return {
        name: found
        for name, found in _TARGETS.items()
        if group is None or name.partition(".")[0] == group
    }


def limited(found: Target) -> Run:
    """The target, but an input that takes long for its size fails too. CPU time of the thread
    counts, at best of several runs, so that a busy machine does not matter."""

    def run(data: bytes) -> None:
        limit_s = (BASE_MS / 1e3 + len(data) * PER_BYTE_US / 1e6) * found.weight
        taken_s = _cpu_s(found.run, data)
        if taken_s > limit_s:
            taken_s = min(_cpu_s(found.run, data) for _ in range(_REPEATS))
        if taken_s > limit_s:
            raise SlowInput(f"{len(data)} bytes take {taken_s:.3f} s of CPU time in {found.name}")

    return run


def _cpu_s(run: Run, data: bytes) -> float:
    began = time.thread_time()
    run(data)
    return time.thread_time() - began


# ------------------------------------------------------------ what targets share


def pieces(data: bytes, mark: bytes = b"\xff\x00\xff") -> list[bytes]:
    """The input cut at a mark: for targets that take several values."""
    return data.split(mark)


def with_crc(head: bytes, guarded: bytes) -> bytes:
    """`head`, the CRC-32C of what follows it, what follows it: gets behind the check."""
    return b"".join((head, google_crc32c.value(guarded).to_bytes(4, "little"), guarded))


class Values:
    """Values of any shape out of bytes, so that mutations of the bytes are mutations of them."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)
        self._left = len(data)

    def _next(self) -> int:
        self._left -= 1
        return next(self._bytes, 0)

    def some(self, count: int) -> bytes:
        return bytes(self._next() for _ in range(count))

    def value(self, depth: int = 0) -> Any:
        kind = self._next() % 12
        if kind < 8 or depth > 6 or self._left <= 0:
            return self._scalar(kind)
        if kind < 10:
            return [self.value(depth + 1) for _ in range(self._next() % 9)]
        return {self.name(): self.value(depth + 1) for _ in range(self._next() % 5)}

    def _scalar(self, kind: int) -> Any:
        match kind:
            case 0:
                return None
            case 1:
                return bool(self._next() & 1)
            case 2:
                return self._next()
            case 3:
                return int.from_bytes(self.some(8), "big")
            case 4:
                return -int.from_bytes(self.some(self._next() % 8), "big")
            case 5:
                return self.some(self._next() % 33)
            case 6:
                return self.some(self._next() % 33).decode("latin-1")
            case 7:
                return float(self._next()) / 8
        return self.name()

    def name(self) -> str:
        return chr(97 + self._next() % 26)

    def values(self) -> Iterator[Any]:
        while self._left > 0:
            yield self.value()


def packed(value: object) -> bytes:
    return bytes(msgpack.packb(value))
