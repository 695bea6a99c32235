"""What of an installation keeps a node from running in it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from lakemq.broker_core.api.errors import StartupError

_WHOLE = "lakemq"
_CLIENT = "lakemq-client"


def check_installation() -> None:
    """Raises StartupError: no such system, or modules of two versions."""
    if find_spec("fcntl") is None:
        raise StartupError(
            "a node runs on Linux and macOS; this system has the SDK and the commands of clients"
        )
    whole, client = _version(_WHOLE), _version(_CLIENT)
    if whole and client and whole != client:
        raise StartupError(
            f"{_WHOLE} {whole} and {_CLIENT} {client} are installed in one environment and share "
            f"files: pip uninstall {_CLIENT}, then pip install --force-reinstall {_WHOLE}=={whole}"
        )


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
