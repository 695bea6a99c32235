"""Making files durable, on each system by the call that survives power loss there.

Linux writes through the disk's cache on fsync(2) and fdatasync(2). macOS has no fdatasync, and its
fsync leaves data in the disk's cache: F_FULLFSYNC does not (fsync(2), fcntl(2) of macOS).
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Final

_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
_NOT_HERE: Final = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)
"""What F_FULLFSYNC says on file systems that do not have it, such as those of a network."""


def sync_data(descriptor: int) -> None:
    """Make content and length of an open file durable. Raises OSError: they may not be."""
    if _FULL_SYNC is None and hasattr(os, "fdatasync"):
        # It leaves out times, but not a length that is needed to read the data back.
        os.fdatasync(descriptor)
    else:
        sync_all(descriptor)


def sync_all(descriptor: int) -> None:
    """Make an open file, or the names in an open folder, durable. Raises OSError."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
        else:
            return
    os.fsync(descriptor)
