"""Goal: replaced files are read again; wrong ones change nothing and are reported once."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.api.tls_files import watched_files
from lakemq.broker_core.api.tls_files.server_context import server_context
from lakemq.broker_core.api.tls_files.watched_files import WatchedFiles


def replace(path: Path, text: str) -> None:
    """As tools do it that renew certificates."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "one", tmp_path / "two"
    for path in paths:
        path.write_text("1")
    return paths


def watched(pair: tuple[Path, Path]) -> WatchedFiles[str]:
    """Both files hold the same, or do not fit together."""

    def load() -> str:
        one, two = (path.read_text() for path in pair)
        if one != two:
            raise ConfigError(f"{one} does not fit {two}")
        return one

    return WatchedFiles(pair, load)


def test_files_are_read_again_once_they_fit(
    pair: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    files = watched(pair)
    assert not files.refresh()
    replace(pair[0], "2")
    assert [files.refresh(), files.refresh()] == [False, False]
    assert files.value == "1"
    assert caplog.text.count("2 does not fit 1") == 1, "reported once"
    replace(pair[1], "2")
    with caplog.at_level(logging.INFO):
        assert files.refresh()
    assert files.value == "2" and "reloaded" in caplog.text
    assert not files.refresh()


def test_a_file_that_is_away_for_a_moment(pair: tuple[Path, Path]) -> None:
    files = watched(pair)
    pair[1].unlink()
    assert not files.refresh() and files.value == "1"
    pair[1].write_text("1")
    assert files.refresh() and files.value == "1"


def test_what_is_wrong_at_the_start_is_raised(pair: tuple[Path, Path]) -> None:
    replace(pair[0], "2")
    with pytest.raises(ConfigError, match="2 does not fit 1"):
        watched(pair)
    pair[0].unlink()
    with pytest.raises(FileNotFoundError):
        watched(pair)


def test_the_file_system_is_asked_once_a_second(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(watched_files.time, "monotonic", lambda: now_s[0])
    files = watched(pair)
    for path in pair:
        replace(path, "2")
    now_s[0] = 0.9
    assert files.current() == "1"
    now_s[0] = 1.0
    assert files.current() == "2"


def test_tls_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"plugins\.native: tls_cert no\.crt with tls_key no\.key"
    ):
        server_context("plugins.native", "no.crt", "no.key")
