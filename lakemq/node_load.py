"""The figures of this process that heartbeats carry to the MetaService."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_CPU_S: Final = 5.0
"""The CPU figure is the mean of about this time: heartbeats come twice a second."""


class NodeLoad:
    """Called for each heartbeat."""

    def __init__(
        self,
        folder: Path,
        now_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        """`folder`: of the node's data."""
        self._folder = folder
        self._now_s = now_s
        self._cpu_s = cpu_s
        self._began_s = now_s()
        self._measured = now_s(), cpu_s()
        self._cpu_ratio = 0.0

    def __call__(self) -> dict[str, float]:
        """`disk_used_ratio`: of the file system, 0 to 1. `cpu_ratio`: CPU time of this process by
        time; 1 is one core, which bounds an event loop. `uptime_s`: how long it has been there."""
        then_s, spent_s = self._measured
        now_s = self._now_s()
        if now_s - then_s >= _CPU_S:
            self._measured = now_s, self._cpu_s()
            self._cpu_ratio = (self._measured[1] - spent_s) / (now_s - then_s)
        usage = shutil.disk_usage(self._folder)
        return {
            "disk_used_ratio": usage.used / max(1, usage.used + usage.free),
            "cpu_ratio": self._cpu_ratio,
            "uptime_s": now_s - self._began_s,
        }
