"""Runs at the start of Python: takes away what it has on Linux and not on Windows.

Modules of the standard library that decide at import what system this is are imported before.
"""

import asyncio
import asyncio.unix_events
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any, NoReturn

_ = (multiprocessing, subprocess, tempfile)
for _name in ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "uvloop"):
    sys.modules[_name] = None  # type: ignore[assignment]
for _name in (
    "O_CLOEXEC", "O_DIRECTORY", "eventfd", "fchmod", "fdatasync", "fork", "geteuid", "getuid",
    "posix_fadvise", "pread", "pwrite", "pwritev", "sched_getaffinity", "statvfs",
):  # fmt: skip
    delattr(os, _name)
for _name in ("AF_NETLINK", "SO_REUSEPORT", "SOCK_CLOEXEC"):
    delattr(socket, _name)
for _name in ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2"):
    delattr(signal, _name)
del select.poll


def _refuse(*_: Any) -> NoReturn:
    raise NotImplementedError


for _name in ("add_signal_handler", "remove_signal_handler"):
    setattr(asyncio.unix_events._UnixSelectorEventLoop, _name, _refuse)
