r"""The line protocol: bytes <-> requests and answers. Pure.

A request is a line, an answer is a line; answers come in the order of requests, so a client may
send many requests before it reads.

    PUT <topic> <key> <value>\n     ->  OK <partition> <offset>\n
                                        ERR <code> <text>\n

Topic and key hold no space; the key `-` means none. The value is the rest of the line, spaces
included, and may be empty. `\r\n` ends a line too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError
from lakemq.broker_core.api.types import Placed

NO_KEY: Final = b"-"
_TEXT_CHARACTERS_MAX: Final = 200


class LineTooLong(LakeMQError):
    code = "LINE_TOO_LONG"


class Put(NamedTuple):
    """Store one record."""

    topic: str
    key: bytes | None
    value: bytes


class LineDecoder:
    """Cuts what arrives into requests. Keeps at most one unfinished line."""

    def __init__(self, line_max_bytes: int) -> None:
        self._line_max_bytes = line_max_bytes
        self._rest = b""

    def receive(self, data: bytes) -> list[Put | LakeMQError]:
        """Requests whose lines are complete, in order; an error in place of what makes no sense.

        `LineTooLong` is the last entry that ever comes: nothing behind it can be understood.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        found: list[Put | LakeMQError] = []
        for line in lines:
            if len(line) > self._line_max_bytes:
                return [*found, self._too_long()]
            found.append(_parse(line.removesuffix(b"\r")))
        if len(self._rest) > self._line_max_bytes:
            found.append(self._too_long())
        return found

    def _too_long(self) -> LineTooLong:
        self._rest = b""
        return LineTooLong(f"a line holds at most {self._line_max_bytes} bytes")


def _parse(line: bytes) -> Put | LakeMQError:
    verb, _, arguments = line.partition(b" ")
    if verb != b"PUT":
        return InvalidRequest("a request is: PUT <topic> <key> <value>")
    topic, _, rest = arguments.partition(b" ")
    key, space, value = rest.partition(b" ")
    if not topic or not key or not space:
        return InvalidRequest("PUT takes a topic, a key (- for none) and a value")
    try:
        return Put(topic.decode(), None if key == NO_KEY else key, value)
    except UnicodeDecodeError:
        return InvalidRequest("the topic is not UTF-8")


def answer(outcome: Placed | LakeMQError) -> bytes:
    """One answer line."""
    if isinstance(outcome, Placed):
        return b"OK %d %d\n" % outcome
    text = " ".join(str(outcome).split())[:_TEXT_CHARACTERS_MAX]
    return f"ERR {outcome.code} {text}\n".encode()
