"""Goal: lines come as they are written, in groups, none lost or split, whatever the pieces are."""

from __future__ import annotations

import io
import os
import random
import signal
import threading

import pytest

from lakemq.plugins.native.cli import line_reader
from lakemq.plugins.native.cli.line_reader import LINES_MAX, LineReader


@pytest.mark.parametrize("seed", range(20))
def test_no_line_is_lost_or_split(seed: int) -> None:
    chance = random.Random(seed)
    lines = [os.urandom(chance.randrange(30)).replace(b"\n", b"").rstrip(b"\r") for _ in range(500)]
    data = b"".join(line + chance.choice([b"\n", b"\r\n"]) for line in lines) + b"end"
    out, into = os.pipe()

    def write() -> None:
        at = 0
        while at < len(data):
            at += os.write(into, data[at : at + chance.randrange(1, 4000)])
        os.close(into)

    thread = threading.Thread(target=write)
    thread.start()
    with open(out, "rb") as source:
        groups = list(LineReader(source))
    thread.join()
    assert [line for group in groups for line in group] == [*lines, b"end"]


def test_a_file_without_descriptor_is_read_too() -> None:
    lines = [b"%d" % number for number in range(2 * LINES_MAX + 1)]
    groups = list(LineReader(io.BytesIO(b"\n".join(lines))))
    assert [line for group in groups for line in group] == lines
    assert max(map(len, groups)) <= LINES_MAX


def test_an_open_pipe_gives_what_is_there_and_a_signal_ends_it() -> None:
    out, into = os.pipe()
    os.write(into, b"a\nb\nhalf")
    with open(out, "rb") as source, LineReader(source) as reader:
        groups = iter(reader)
        assert next(groups) == [b"a", b"b"]  # although the pipe is open
        os.write(into, b" more\nc\nunfinished")
        signal.raise_signal(signal.SIGTERM)
        assert list(groups) == []
        assert reader.signal == signal.SIGTERM
    os.close(into)


def test_what_was_read_before_the_signal_is_given() -> None:
    before = signal.getsignal(signal.SIGINT)  # PySpark's own, where that ran in this process
    out, into = os.pipe()
    os.write(into, b"a\nb")
    with open(out, "rb") as source, LineReader(source) as reader:
        groups = iter(reader)
        taken = reader._read

        def read_then_signal(wait_s: float | None) -> bytes | None:
            data = taken(wait_s)
            signal.raise_signal(signal.SIGINT)
            return data

        reader._read = read_then_signal  # type: ignore[method-assign]
        assert list(groups) == [[b"a"]]
        assert (reader.signal, reader.unfinished) == (signal.SIGINT, True)
    os.close(into)
    assert signal.getsignal(signal.SIGINT) is before


def test_where_files_cannot_be_waited_for_lines_come_as_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line_reader, "_WAITS_FOR_FILES", False)  # Windows
    out, into = os.pipe()
    os.write(into, b"a\nb\nhalf")
    with open(out, "rb") as source:
        groups = iter(LineReader(source))
        assert next(groups) == [b"a", b"b"]  # although the pipe is open
        os.write(into, b" more\n")
        assert next(groups) == [b"half more"]
        os.close(into)
        assert list(groups) == []
