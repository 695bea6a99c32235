"""The group that a member began with when it joined or founded one: file `raft.group`.

CRC-32C of what follows (4 bytes, little-endian), then the group as a log entry has it. Absent: the
member began with the group of its settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import google_crc32c

from lakemq.meta_service.api.errors import StartupFailed
from lakemq.meta_service.raft.log.files import Folder
from lakemq.meta_service.raft.membership import Group, decode_group, encode_group

NAME: Final = "raft.group"


def read_first_group(folder: Path) -> Group | None:
    """Raises StartupFailed."""
    path = folder / NAME
    if not path.exists():
        return None
    data = path.read_bytes()
    if len(data) < 5 or google_crc32c.value(data[4:]) != int.from_bytes(data[:4], "little"):
        raise StartupFailed(
            f"{path} is damaged: this member must be removed from the group and added again"
        )
    return decode_group(data[4:])


def write_first_group(folder: Path, group: Group) -> None:
    """Durable when it returns."""
    data = encode_group(group)
    crc: int = google_crc32c.value(data)
    disk = Folder(folder)
    file = disk.open(NAME + ".new", fresh=True)
    try:
        file.write(0, crc.to_bytes(4, "little") + data)
        file.sync()
    finally:
        file.close()
    # Written, fsynced, then renamed: a crash leaves the old file or the new one.
    disk.replace(NAME + ".new", NAME)
