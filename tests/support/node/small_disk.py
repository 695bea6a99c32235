"""A file system of a few MiB, in memory, that a test can fill; only root may mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SIZE_MIB = 32
_MIB = 1024 * 1024


@contextmanager
def small_disk(folder: Path, size_mib: int = SIZE_MIB) -> Iterator[Path]:
    """Mounted at `folder` until the end, empty; gives a path in it, for what takes room."""
    folder.mkdir(parents=True)
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "lakemq-test", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder / "ballast"
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def free_bytes(ballast: Path) -> int:
    """Of the file system on which it lies."""
    found = os.statvfs(ballast.parent)
    return found.f_bavail * found.f_frsize


def grow(ballast: Path, left_bytes: int) -> None:
    """Until so much is free."""
    with ballast.open("ab") as file:
        while (more := free_bytes(ballast) - left_bytes) > 0:
            try:
                file.write(bytes(min(more, _MIB)))
                file.flush()
            except OSError:
                return
