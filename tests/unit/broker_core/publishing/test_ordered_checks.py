"""Goal: what is checked in threads goes on in the order in which it was asked for."""

from __future__ import annotations

import asyncio
import threading

import pytest

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.publishing.ordered_checks import OrderedChecks


class Order:
    """Notes who had its turn."""

    def __init__(self) -> None:
        self.turns: list[str] = []

    def turn(self, name: str) -> asyncio.Future[str]:
        self.turns.append(name)
        done = asyncio.get_running_loop().create_future()
        done.set_result(name)
        return done


async def test_without_a_check_the_turn_is_at_once() -> None:
    order, checks = Order(), OrderedChecks()
    future = checks.run("k", None, lambda: order.turn("a"))
    assert order.turns == ["a"]
    assert await future == "a"


async def test_a_cheap_one_waits_for_a_slow_one_of_its_key_only() -> None:
    order, checks, go = Order(), OrderedChecks(), threading.Event()
    slow = checks.run("k", go.wait, lambda: order.turn("slow"))
    cheap = checks.run("k", None, lambda: order.turn("cheap"))
    other = checks.run("j", None, lambda: order.turn("other"))
    assert await other == "other"
    assert order.turns == ["other"]
    go.set()
    assert await asyncio.gather(slow, cheap) == ["slow", "cheap"]
    assert order.turns == ["other", "slow", "cheap"]
    await checks.stop()


async def test_the_quicker_of_two_checks_waits_for_its_turn() -> None:
    order, checks, go = Order(), OrderedChecks(), threading.Event()
    first = checks.run("k", go.wait, lambda: order.turn("first"))
    second = checks.run("k", go.set, lambda: order.turn("second"))
    await asyncio.gather(first, second)
    assert order.turns == ["first", "second"]


async def test_a_failed_check_is_told_and_the_next_one_goes_on() -> None:
    order, checks = Order(), OrderedChecks()

    def fails() -> None:
        raise CorruptBatch("no")

    bad = checks.run("k", fails, lambda: order.turn("bad"))
    good = checks.run("k", None, lambda: order.turn("good"))
    with pytest.raises(CorruptBatch, match="no"):
        await bad
    assert await good == "good"
    assert order.turns == ["good"]


async def test_who_is_gone_keeps_its_turn() -> None:
    order, checks, go = Order(), OrderedChecks(), threading.Event()
    first = checks.run("k", go.wait, lambda: order.turn("first"))
    gone = checks.run("k", None, lambda: order.turn("gone"))
    last = checks.run("k", None, lambda: order.turn("last"))
    gone.cancel()
    go.set()
    await asyncio.gather(first, last)
    assert order.turns == ["first", "gone", "last"]


async def test_stop_waits_for_what_was_begun() -> None:
    order, checks = Order(), OrderedChecks()
    checks.run("k", lambda: None, lambda: order.turn("a"))
    await checks.stop()
    assert order.turns == ["a"]
