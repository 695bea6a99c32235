"""Metrics of the process and of the disk below its data, named as OpenTelemetry's conventions for
processes and systems have it."""

from __future__ import annotations

import os
import resource
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

_PAGE_BYTES: Final = resource.getpagesize()
_STATM: Final = Path("/proc/self/statm")
_DESCRIPTORS: Final = Path("/proc/self/fd")
"""Of Linux; elsewhere what they tell is left out."""


def register_process_metrics(meter: Meter, folder: Path) -> None:
    """`folder`: of the node's data, which is there when metrics are read."""
    started_s = time.monotonic()
    place = {"system.filesystem.mountpoint": str(_mount_point(folder))}

    def cpu(_: CallbackOptions) -> Iterable[Observation]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield Observation(used.ru_utime, {"cpu.mode": "user"})
        yield Observation(used.ru_stime, {"cpu.mode": "system"})

    def switches(_: CallbackOptions) -> Iterable[Observation]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield Observation(used.ru_nvcsw, {"process.context_switch.type": "voluntary"})
        yield Observation(used.ru_nivcsw, {"process.context_switch.type": "involuntary"})

    def faults(_: CallbackOptions) -> Iterable[Observation]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield Observation(used.ru_majflt, {"system.paging.fault.type": "major"})
        yield Observation(used.ru_minflt, {"system.paging.fault.type": "minor"})

    def disk(_: CallbackOptions) -> Iterable[Observation]:
        usage = shutil.disk_usage(folder)
        yield Observation(usage.used, {**place, "system.filesystem.state": "used"})
        yield Observation(usage.free, {**place, "system.filesystem.state": "free"})

    counter, level = meter.create_observable_counter, meter.create_observable_up_down_counter
    counter("process.cpu.time", [cpu], "s", "CPU time of the process.")
    counter("process.context_switches", [switches], "{context_switch}", "Context switches.")
    counter("process.paging.faults", [faults], "{fault}", "Page faults; major: a disk was read.")
    level("process.thread.count", [lambda _: [Observation(threading.active_count())]], "{thread}",
          "Threads of Python.")  # fmt: skip
    if _STATM.exists():
        level("process.memory.virtual", [lambda _: [Observation(_memory(0))]], "By",
              "Virtual memory.")  # fmt: skip
        level("process.memory.usage", [lambda _: [Observation(_memory(1))]], "By",
              "Physical memory.")  # fmt: skip
        level("process.unix.file_descriptor.count", [_open_files], "{file_descriptor}",
              "Open files and sockets.")  # fmt: skip
    level("lakemq.process.file_descriptor.limit", [_open_files_max], "{file_descriptor}",
          "Files and sockets that may be open.")  # fmt: skip
    meter.create_observable_gauge(
        "process.uptime", [lambda _: [Observation(time.monotonic() - started_s)]], "s",
        "Time since the node began to start.",
    )  # fmt: skip
    level("system.filesystem.usage", [disk], "By", "Disk that holds the data.")
    level("system.filesystem.limit",
          [lambda _: [Observation(shutil.disk_usage(folder).total, place)]], "By",
          "Size of the disk that holds the data.")  # fmt: skip


def _memory(field: int) -> int:
    """Bytes; field 0: virtual, 1: resident (proc(5), /proc/pid/statm)."""
    return int(_STATM.read_text().split()[field]) * _PAGE_BYTES


def _open_files(_: CallbackOptions) -> Iterable[Observation]:
    yield Observation(sum(1 for _ in os.scandir(_DESCRIPTORS)))


def _open_files_max(_: CallbackOptions) -> Iterable[Observation]:
    yield Observation(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _mount_point(folder: Path) -> Path:
    folder = folder.absolute()
    return next(each for each in (folder, *folder.parents) if each.is_mount())
