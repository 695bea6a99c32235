"""Changes to a password file: whole or not at all, readable by its owner alone."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from lakemq.broker_core.api.errors import ConfigError, InvalidRequest
from lakemq.broker_core.security.authn.users import UserRecord, read_users, user_line


def users_of(path: Path) -> dict[str, UserRecord]:
    """Raises ConfigError, naming file and line."""
    try:
        return read_users(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, InvalidRequest) as error:
        raise ConfigError(f"{path}: {error}") from None


def put_user(path: Path, user: UserRecord) -> None:
    """Write one user's line, leaving all other lines as they are."""
    _rewrite(path, user.name, user_line(user))


def remove_user(path: Path, name: str) -> None:
    """Remove one user's line, leaving all other lines as they are. Raises ConfigError."""
    _rewrite(path, name, None)


def _rewrite(path: Path, name: str, line: str | None) -> None:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept, written = [], False
    for each in lines:
        # Comments and lines that do not parse stay: only the named user's line is ours to change.
        if each.startswith("#") or each.split()[:1] != [name]:
            kept.append(each)
        elif line is not None:
            kept.append(line)
            written = True
    if line is not None and not written:
        kept.append(line)
    try:
        _replace(path, "".join(f"{each}\n" for each in kept))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            # `mkstemp` makes a file for its owner alone; a mode that the operator gave the old one,
            # such as group read for the broker, is kept.
            os.chmod(temporary, path.stat().st_mode & 0o777)
        # In the same folder, so that the rename is atomic: a broker that reads the file sees the
        # old or the new one whole.
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
