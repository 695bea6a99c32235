"""Finds the line of a setting in a TOML text, which `tomllib` does not tell."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[str | int, ...]


def line_of(text: str, path: Path) -> int:
    """1-based line of the longest written beginning of `path`; 0 when nothing of it is written."""
    best, found = 0, 0
    for written, line in _places(text):
        size = len(written)
        if best < size <= len(path) and written == path[:size]:
            best, found = size, line
    return found


def _places(text: str) -> Iterator[tuple[Path, int]]:
    """(path, line) of every table header and key that begins a line."""
    table: Path = ()
    arrays: dict[Path, int] = {}
    quote = ""  # an open multi-line string
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not quote and bare.startswith("["):
            table = _header(bare, arrays) or table
            yield table, number
        elif not quote and "=" in bare and not bare.startswith("#"):
            key = _key(bare.partition("=")[0])
            yield (*table, *key), number
        for mark in ('"""', "'''"):
            if bare.count(mark) % 2 and quote in ("", mark):
                quote = "" if quote else mark


def _header(line: str, arrays: dict[Path, int]) -> Path | None:
    """Path of `[a.b]`, or of `[[a.b]]` with the number of its entry."""
    try:
        parsed = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    path = _descend(parsed)
    if line.startswith("[["):
        index = arrays.get(path, -1) + 1
        arrays[path] = index
        return (*path, index)
    return path


def _key(text: str) -> Path:
    try:
        return _descend(tomllib.loads(f"{text} = 0"))
    except tomllib.TOMLDecodeError:
        return ("",)


def _descend(parsed: Any) -> Path:
    path: list[str | int] = []
    while isinstance(parsed, Mapping) and parsed:
        name = next(iter(parsed))
        path.append(name)
        parsed = parsed[name]
    return tuple(path)
