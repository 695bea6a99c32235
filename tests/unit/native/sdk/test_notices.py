"""Goal: a client tells of its connections at a bounded rate, and says what it left out."""

from __future__ import annotations

import logging

import pytest

from lakemq.plugins.native.sdk.notices import Notices


def test_a_kind_of_notice_is_told_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lakemq")
    now = [0.0]
    notices = Notices(10.0, lambda: now[0])
    for second in range(25):
        now[0] = second
        notices.tell("broke", "a", text=f"a broke at {second}")
        if second in (3, 4):
            notices.tell("broke", "b", text=f"b broke at {second}")
    assert [each.getMessage() for each in caplog.records] == [
        "a broke at 0",
        "b broke at 3",
        "a broke at 10 (9 more like this since the last)",
        "a broke at 20 (9 more like this since the last)",
    ]
    assert {(each.name, each.levelno) for each in caplog.records} == {("lakemq.sdk", logging.INFO)}


def test_what_is_remembered_is_bounded() -> None:
    logging.getLogger("lakemq.sdk").setLevel(logging.INFO)
    try:
        notices = Notices()
        for number in range(5000):
            notices.tell("broke", str(number), text="")
        assert 0 < len(notices._told) <= 1000
    finally:
        logging.getLogger("lakemq.sdk").setLevel(logging.NOTSET)


def test_nothing_is_kept_for_a_log_that_nobody_reads() -> None:
    notices = Notices()
    notices.tell("broke", "a", text="x", level=logging.DEBUG)
    assert not notices._told
