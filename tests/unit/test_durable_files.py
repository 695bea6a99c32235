"""Goal: on macOS, too, what is synced survives power loss, and a disk that fails is told."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from lakemq.meta_service.api import durable_files

FULL_SYNC = 51
"""F_FULLFSYNC of macOS."""


class Calls(list[str]):
    """Notes which calls make the system write, in place of the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails_with: int | None = None
        monkeypatch.setattr(os, "fsync", lambda _: self.append("fsync"))
        monkeypatch.setattr(os, "fdatasync", lambda _: self.append("fdatasync"))
        monkeypatch.setattr(fcntl, "fcntl", self._fcntl)

    def _fcntl(self, descriptor: int, command: int) -> None:
        assert command == FULL_SYNC
        self.append("full")
        if self.fails_with is not None:
            raise OSError(self.fails_with, os.strerror(self.fails_with))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def sync_both() -> None:
    durable_files.sync_data(0)
    durable_files.sync_all(0)


def test_linux(calls: Calls) -> None:
    sync_both()
    assert calls == ["fdatasync", "fsync"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(None, ["full"] * 2), (errno.ENOTSUP, ["full", "fsync"] * 2)],
    ids=["disk", "network"],
)
def test_macos(
    error: int | None, expected: list[str], calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_files, "_FULL_SYNC", FULL_SYNC)
    monkeypatch.delattr(os, "fdatasync")
    calls.fails_with = error
    sync_both()
    assert calls == expected


def test_a_failing_disk_is_told(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_files, "_FULL_SYNC", FULL_SYNC)
    calls.fails_with = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        durable_files.sync_data(0)
    assert calls == ["full"], "not tried again in another way, which may succeed for nothing"


def test_another_system_without_fdatasync(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fdatasync")
    durable_files.sync_data(0)
    assert calls == ["fsync"]
