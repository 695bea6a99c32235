"""What a node says in its log: for people, as JSON, or to systemd's journal with fields.

A line says what its message says: no payload, password or token is ever given to a logger
(`docs/security.md`, secrets). Texts are cut off, since clients choose some of them.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from opentelemetry.trace import get_current_span

from lakemq.meta_service.api.types import node_of

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PLUGINS: Final = "lakemq.plugins."
MESSAGE_MAX: Final = 8192
"""Characters of a message, and of a traceback."""
CLIENT_MAX: Final = 256
"""Characters of a client id."""
JOURNAL: Final = Path("/run/systemd/journal/socket")
_PRIORITIES: Final = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""From which level on, and its priority (syslog(3)); below: 7."""


class Fields:
    """What is told of a record beside its message."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id

    def of(self, record: logging.LogRecord) -> Iterator[tuple[str, str]]:
        """`logger`, `node`, and, where there are: `plugin`, `client` (the `extra` of that name),
        `trace_id` and `span_id` of the current span, `error` (a traceback)."""
        yield "logger", record.name
        yield "node", self.node_id
        if record.name.startswith(_PLUGINS):
            yield "plugin", record.name.removeprefix(_PLUGINS).partition(".")[0]
        client = getattr(record, "client", None)
        if client:
            yield "client", str(client)[:CLIENT_MAX]
        span = get_current_span().get_span_context()
        if span.is_valid:
            yield "trace_id", f"{span.trace_id:032x}"
            yield "span_id", f"{span.span_id:016x}"
        if record.exc_info and record.exc_info[0] is not None:
            # Its end tells what went wrong.
            yield "error", logging.Formatter().formatException(record.exc_info)[-MESSAGE_MAX:]


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (RFC 3339, UTC), `level`, `message` and the `Fields`."""

    def __init__(self, node_id: str) -> None:
        super().__init__()
        self._fields = Fields(node_id)

    def format(self, record: logging.LogRecord) -> str:
        """As `logging.Formatter.format`."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        said = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage()[:MESSAGE_MAX],
            **dict(self._fields.of(record)),
        }
        return json.dumps(said, ensure_ascii=False)


class JournalHandler(logging.Handler):
    """Sends to systemd's journal by its native protocol
    (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/): `journalctl LAKEMQ_CLIENT=...`. What it does not
    take goes to standard error."""

    def __init__(self, node_id: str, path: Path = JOURNAL) -> None:
        super().__init__()
        self._fields = Fields(node_id)
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def emit(self, record: logging.LogRecord) -> None:
        """As `logging.Handler.emit`."""
        try:
            self._socket.sendto(b"".join(map(_entry, self._entries(record))), self._path)
        except (OSError, ValueError):
            sys.stderr.write(f"{logging.Formatter(_TEXT).format(record)}\n")

    def _entries(self, record: logging.LogRecord) -> Iterator[tuple[str, str]]:
        level = record.levelno
        priority = next((number for least, number in _PRIORITIES if level >= least), 7)
        yield "MESSAGE", record.getMessage()[:MESSAGE_MAX]
        yield "PRIORITY", str(priority)
        yield "SYSLOG_IDENTIFIER", "lakemq"
        for name, value in self._fields.of(record):
            yield f"LAKEMQ_{name.upper()}", value

    def close(self) -> None:
        """As `logging.Handler.close`."""
        self._socket.close()
        super().close()


def _entry(pair: tuple[str, str]) -> bytes:
    name, text = pair
    value = text.encode("utf-8", "backslashreplace")
    # With its length, so that a line break in it begins no other field.
    return b"%s\n%s%s\n" % (name.encode(), len(value).to_bytes(8, "little"), value)


def set_up_logs(level: str, form: str, node_id: str) -> None:
    """Have this process log to standard error, or to the journal. `form`: `text`, `json` or
    `journald`."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if form == "journald":
        handler = JournalHandler(node_id)
    elif form == "json":
        handler.setFormatter(JsonFormatter(node_id))
    else:
        # Processes of a node write to one log.
        named = f"{node_id} %(name)s" if node_of(node_id) != node_id else "%(name)s"
        handler.setFormatter(logging.Formatter(_TEXT.replace("%(name)s", named)))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # Warnings of Python would be lines of another kind.
    logging.captureWarnings(form != "text")
