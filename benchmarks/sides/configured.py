"""Configurations of the repository, filled in, and ports for them."""

from __future__ import annotations

import socket
from pathlib import Path
from string import Template

CONFIGURATIONS = Path(__file__).parents[1] / "configurations"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def filled(name: str, home: Path, **values: object) -> Path:
    """The configuration of that name, written into `home` with `${...}` replaced."""
    text = (CONFIGURATIONS / name).read_text()
    path = home / name
    path.write_text(Template(text).substitute(values))
    return path
