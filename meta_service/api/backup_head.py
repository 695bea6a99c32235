"""Head of a backup file: magic (8 bytes), CRC32C of what follows (4 bytes, little-endian), log
index, term and size of the data (8 bytes each, little-endian), cluster id (32 bytes)."""

from __future__ import annotations

import struct
from typing import BinaryIO, Final, NamedTuple

import google_crc32c

from lakemq.meta_service.api.errors import InvalidArgument

_MAGIC: Final = b"LMQBACK\x01"
_NOTE: Final = struct.Struct("<QQQ32s")
HEAD_BYTES: Final = 8 + 4 + _NOTE.size


class BackupNote(NamedTuple):
    """What the head says."""

    log_index: int
    term: int
    size: int
    """Of the data behind the head (bytes)."""
    cluster_id: str


def encode_head(note: BackupNote) -> bytes:
    """The first bytes of a backup file."""
    packed = _NOTE.pack(note.log_index, note.term, note.size, note.cluster_id.encode())
    crc: int = google_crc32c.value(packed)
    return _MAGIC + crc.to_bytes(4, "little") + packed


def read_head(file: BinaryIO) -> BackupNote:
    """Raises InvalidArgument."""
    head = file.read(HEAD_BYTES)
    if len(head) != HEAD_BYTES or head[:8] != _MAGIC:
        raise InvalidArgument("backup: this is not a backup of a MetaService")
    if google_crc32c.value(head[12:]) != int.from_bytes(head[8:12], "little"):
        raise InvalidArgument("backup: the head of the file is damaged")
    log_index, term, size, cluster_id = _NOTE.unpack(head[12:])
    return BackupNote(log_index, term, size, cluster_id.decode("ascii", "replace"))
