"""A file of users, rules or keys that is read again when it changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lakemq.broker_core.api.errors import ConfigError, LakeMQError
from lakemq.broker_core.api.tls_files.watched_files import WatchedFiles

T = TypeVar("T")


def watched_file(path: str, read: Callable[[bytes], T]) -> WatchedFiles[T]:
    """What a file holds, as `read` understands its bytes. Raises ConfigError, naming the file, when
    it is missing or wrong now; see WatchedFiles for later."""
    try:
        return WatchedFiles([path], lambda: read(Path(path).read_bytes()))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None
    except LakeMQError as error:
        raise ConfigError(f"{path}: {error}") from None
