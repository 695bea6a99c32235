"""Goal: a log line says in fields what it is about, whatever clients put into it."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from lakemq.telemetry.logs import CLIENT_MAX, MESSAGE_MAX, JournalHandler, JsonFormatter


def record(message: str, *values: object, name: str = "lakemq.node", **more: Any) -> Any:
    made = logging.LogRecord(name, logging.WARNING, "f.py", 1, message, values, more.pop("e", None))
    made.created, made.msecs = 1_700_000_000.25, 250.0
    vars(made).update(more)
    return made


def told(made: logging.LogRecord) -> Any:
    line = JsonFormatter("n1").format(made)
    assert "\n" not in line
    return json.loads(line)


def test_a_line_is_one_object() -> None:
    assert told(record("topic %s\nis gone", "tä")) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "message": "topic tä\nis gone",
        "logger": "lakemq.node",
        "node": "n1",
    }


def test_plugin_and_client_are_fields() -> None:
    found = told(record("x", name="lakemq.plugins.mqtt.server.engine", client='a"b' * 1000))
    assert found["plugin"] == "mqtt" and found["client"] == ('a"b' * 1000)[:CLIENT_MAX]


def test_a_line_of_a_traced_call_names_the_trace() -> None:
    with use_span(NonRecordingSpan(SpanContext(0xAB, 0xCD, True, TraceFlags(1)))):
        found = told(record("x"))
    assert (found["trace_id"], found["span_id"]) == (f"{0xAB:032x}", f"{0xCD:016x}")


def test_texts_are_bounded() -> None:
    try:
        raise ValueError("y" * 2 * MESSAGE_MAX)
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    found = told(record("x" * 2 * MESSAGE_MAX, e=info))
    assert len(found["message"]) == len(found["error"]) == MESSAGE_MAX


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[tuple[socket.socket, JournalHandler]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taken:
        taken.bind(str(tmp_path / "socket"))
        taken.settimeout(10)
        handler = JournalHandler("n1", tmp_path / "socket")
        yield taken, handler
        handler.close()


def fields(datagram: bytes) -> dict[str, str]:
    """What the journal would read of it (JOURNAL_NATIVE_PROTOCOL)."""
    found = {}
    while datagram:
        name, _, rest = datagram.partition(b"\n")
        size = int.from_bytes(rest[:8], "little")
        assert rest[8 + size : 9 + size] == b"\n"
        found[name.decode()] = rest[8 : 8 + size].decode()
        datagram = rest[9 + size :]
    return found


def test_the_journal_gets_fields(journal: tuple[socket.socket, JournalHandler]) -> None:
    taken, handler = journal
    handler.emit(record("x\nPRIORITY=0", name="lakemq.plugins.mqtt.x", client="c\nPRIORITY=0"))
    assert fields(taken.recv(65536)) == {
        "MESSAGE": "x\nPRIORITY=0",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "lakemq",
        "LAKEMQ_LOGGER": "lakemq.plugins.mqtt.x",
        "LAKEMQ_NODE": "n1",
        "LAKEMQ_PLUGIN": "mqtt",
        "LAKEMQ_CLIENT": "c\nPRIORITY=0",
    }


def test_without_a_journal_it_is_told_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = JournalHandler("n1", tmp_path / "nobody")
    handler.emit(record("the disk is full"))
    handler.close()
    assert capsys.readouterr().err.endswith("WARNING lakemq.node: the disk is full\n")
