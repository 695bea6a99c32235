"""Goal: what holds the event loop is named, with its place, in one line of the log, and counted."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from lakemq.loop_watchdog import LoopWatchdog, place_of
from tests.support.node.node import PORTS_FREE, NodeProcess

HELD_S = 0.4


def hold_the_loop() -> None:
    time.sleep(HELD_S)  # on purpose: nothing else runs meanwhile


def told(caplog: pytest.LogCaptureFixture) -> None:
    """Wait until it is."""
    while not any("hold_the_loop" in each for each in caplog.messages):
        time.sleep(0.01)


async def test_who_holds_the_loop_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = LoopWatchdog(0.1)
    with caplog.at_level(logging.WARNING, "lakemq.loop_watchdog"):
        watchdog.start()
        await asyncio.sleep(0.15)
        hold_the_loop()
        await asyncio.to_thread(told, caplog)
        watchdog.stop()
    found = [each for each in caplog.messages if "hold_the_loop" in each]
    line = hold_the_loop.__code__.co_firstlineno + 1
    words = re.fullmatch(
        r"the event loop was held for (\d+) ms by "
        rf"tests/integration/node/test_loop_watchdog.py:{line} in hold_the_loop",
        found[0],
    )
    assert len(found) == 1 and words is not None, caplog.messages
    assert int(words[1]) >= 1000 * (HELD_S - 0.1)
    assert watchdog.stalls >= 1 and watchdog.stalled_s >= HELD_S - 0.1


def test_our_own_line_is_named_beside_the_library_that_it_waits_in() -> None:
    def compared(_: object) -> int:
        places.append(place_of(sys._getframe()))
        return 0

    places: list[str] = []
    sorted([1], key=compared)
    assert places[0].startswith("tests/integration/node/test_loop_watchdog.py:")
    seen: list[str] = []
    re.sub("x", lambda _: seen.append(place_of(sys._getframe(1))) or "", "x")
    assert "re/__init__.py" in seen[0] and "test_loop_watchdog.py" in seen[0], seen
    assert place_of(None) == "?"


def test_a_node_counts_them(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, PORTS_FREE + "[node]\nloop_stall_ms = 50\n") as node:
        answer = urllib.request.urlopen(f"http://{node.addresses['admin']}/metrics")
        text = answer.read().decode()
        answer.close()
    assert "lakemq_node_loop_stalls_total" in text and "lakemq_node_loop_stalled" in text
