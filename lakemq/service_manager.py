"""What a service manager is told: `sd_notify(3)` of systemd, which others understand too."""

from __future__ import annotations

import logging
import os
import socket
import time

READY = "READY=1"
STOPPING = "STOPPING=1"
_log = logging.getLogger(__name__)


def reloading() -> str:
    """The state in which the configuration is read again; `READY` ends it. systemd tells by the
    time that the signal which it has just sent is meant (`Type=notify-reload`)."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"


def notify(state: str) -> None:
    """Send one state to the socket that `NOTIFY_SOCKET` names (a path, or `@` and an abstract
    name); nothing without one. Never raises: a service runs on without its manager."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            sender.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
        except OSError as error:
            _log.warning("NOTIFY_SOCKET %s: %s", address, error)
