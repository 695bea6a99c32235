"""Seeded mutations of inputs, for runs without atheris."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

_NUMBERS: Final = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_PIECES: Final = (
    b"\x00", b"\xff", b"\n", b'"', b"{", b"[", b"]", b"}", b",", b":", b"/", b"+", b"#", b"=", b".",
    b"1e999", b"-1", b"\xc2\xb2", b"\xed\xa0\x80", b"\xff\x00\xff", b"\x81\x80\x00", b"null",
    b"9" * 5000, b"[" * 1200, b'{"a":' * 600, b"\x91" * 1200,
)  # fmt: skip
"""What parsers stumble over: marks, numbers out of range, other digits, deep nesting."""


def mutations(seeds: Sequence[bytes], count: int, seed: int, bytes_max: int) -> Iterator[bytes]:
    """Inputs made of `seeds` by a few changes each; the same ones for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 1, 2, 3, 6))):
            _change(data, seeds, rng)
        yield bytes(data[:bytes_max])


def _change(data: bytearray, seeds: Sequence[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    match rng.randrange(9):
        case 0 if at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        case 1 if at < len(data):
            data[at] = rng.randrange(256)
        case 2:
            del data[at : at + rng.choice((1, 2, 4, 16, 1000))]
        case 3:
            data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 16)))
        case 4:
            size = rng.choice((1, 2, 4, 8))
            number = rng.choice(_NUMBERS) & ((1 << (8 * size)) - 1)
            data[at : at + size] = number.to_bytes(size, rng.choice(("little", "big")))
        case 5:
            data[at:at] = rng.choice(_PIECES)
        case 6:
            part = data[at : at + rng.choice((1, 3, 8, 40))]
            data[at:at] = part * rng.choice((1, 2, 50))
        case 7:
            other = rng.choice(seeds)
            begin = rng.randrange(len(other) + 1)
            data[at:at] = other[begin : begin + rng.choice((1, 4, 16, 64))]
        case _:
            del data[at:]
