"""Bytes of the Raft log and of the vote file. `docs/formats/meta.md` describes every byte.

A log file is a header and records back to back. A record says how far the log was durable when the
record was made (`synced_index`). So a reader can tell the two causes of a bad record apart: a tail
that was never acknowledged (cut it), and damage to something acknowledged (refuse to start).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

import google_crc32c

LOG_HEADER: Final = struct.Struct("<8sII")
"""Magic, version, CRC32C of the twelve bytes before it."""
LOG_MAGIC: Final = b"LMQRLOG\x00"
LOG_VERSION: Final = 1

RECORD_MAGIC: Final = b"\xf1RL\x1a"
RECORD_HEADER: Final = struct.Struct("<4sIIIQQQ")
"""Magic, CRC32C, payload length, flags (0), log index, term, synced index."""
_CHECKED: Final = struct.Struct("<IIQQQ")
_CRC_ENDS: Final = 8
"""The CRC covers every byte of the record behind this position."""

VOTE_HEADER: Final = struct.Struct("<8sIIQ")
"""Magic, CRC32C of what follows it, length of the name, term. Then the name voted for."""
VOTE_MAGIC: Final = b"LMQVOTE\x01"

ENTRY_MAX_BYTES: Final = 16 * 1024 * 1024
"""Largest payload of one entry that a reader accepts."""


class Entry(NamedTuple):
    """One entry as pysyncobj keeps it: `command` starts with its type byte."""

    command: bytes
    log_index: int
    term: int


class LogDamaged(Exception):
    """An acknowledged record is unreadable; the message says where."""


@dataclass(frozen=True, slots=True)
class ParsedLog:
    """What lies in a log file, up to its torn tail."""

    entries: list[Entry]
    positions: list[int]
    end: int
    """Byte behind the last good record."""


def _crc_bytes(data: bytes) -> bytes:
    crc: int = google_crc32c.value(data)
    return crc.to_bytes(4, "little")


def encode_log_header() -> bytes:
    """The 16 bytes at the start of every log file."""
    start = LOG_HEADER.pack(LOG_MAGIC, LOG_VERSION, 0)[:12]
    return start + _crc_bytes(start)


def encode_record(entry: Entry, synced_index: int) -> bytes:
    """One entry as a record; `synced_index` is the last index known to be durable now."""
    checked = (
        _CHECKED.pack(len(entry.command), 0, entry.log_index, entry.term, synced_index)
        + entry.command
    )
    return RECORD_MAGIC + _crc_bytes(checked) + checked


def _read_record(data: bytes, position: int) -> tuple[Entry, int, int] | None:
    """(entry, synced index, end) of the record at a position; None when it is not whole."""
    if position + RECORD_HEADER.size > len(data):
        return None
    magic, crc, length, flags, index, term, synced = RECORD_HEADER.unpack_from(data, position)
    start = position + RECORD_HEADER.size
    # Before the CRC: a length that is not plausible must not be read.
    if magic != RECORD_MAGIC or flags or length > ENTRY_MAX_BYTES or start + length > len(data):
        return None
    if google_crc32c.value(data[position + _CRC_ENDS : start + length]) != crc:
        return None
    return Entry(data[start : start + length], index, term), synced, start + length


def parse_log(data: bytes) -> ParsedLog:
    """Read a whole log file. Raises LogDamaged when something acknowledged is gone."""
    if data[: LOG_HEADER.size] != encode_log_header():
        raise LogDamaged("the file does not begin with a Raft log header of version 1")
    entries: list[Entry] = []
    positions: list[int] = []
    position = LOG_HEADER.size
    while (record := _read_record(data, position)) is not None:
        entry, _, end = record
        if entries and (
            entry.log_index != entries[-1].log_index + 1 or entry.term < entries[-1].term
        ):
            break
        entries.append(entry)
        positions.append(position)
        position = end
    if position < len(data):
        _refuse_damage(data, position, entries[-1].log_index + 1 if entries else 0)
    return ParsedLog(entries, positions, position)


def _refuse_damage(data: bytes, position: int, index: int) -> None:
    """Raise if a whole record behind the bad one proves that `index` had been durable."""
    # From the next byte on: a damaged length tells nothing about where the next record begins.
    search = position + 1
    while (found := data.find(RECORD_MAGIC, search)) >= 0:
        record = _read_record(data, found)
        # Its synced index was taken when it was made: an fsync had covered `index` by then.
        if record is not None and record[0].log_index > index and record[1] >= index:
            raise LogDamaged(
                f"log index {index} at byte {position} is damaged, though index "
                f"{record[0].log_index} at byte {found} proves that it was durable"
            )
        # What lies within a whole record is a client's, whatever it looks like.
        search = found + 1 if record is None else record[2]


def encode_vote(term: int, voted_for: str | None) -> bytes:
    """The whole vote file: the term and the candidate voted for in it, if any."""
    name = (voted_for or "").encode()
    checked = struct.pack("<IQ", len(name), term) + name
    return VOTE_MAGIC + _crc_bytes(checked) + checked


def parse_vote(data: bytes) -> tuple[int, str | None]:
    """(term, node voted for in it). Raises LogDamaged."""
    if len(data) < VOTE_HEADER.size:
        raise LogDamaged("the vote file is too short")
    magic, crc, length, term = VOTE_HEADER.unpack_from(data)
    if magic != VOTE_MAGIC or len(data) != VOTE_HEADER.size + length:
        raise LogDamaged("the vote file has a wrong header or length")
    if google_crc32c.value(data[12:]) != crc:
        raise LogDamaged("the vote file fails its checksum")
    try:
        return term, data[VOTE_HEADER.size :].decode() or None
    except UnicodeDecodeError as error:
        raise LogDamaged(f"the vote file names no candidate: {error}") from None
