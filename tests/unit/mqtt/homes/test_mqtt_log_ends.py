"""Goal: who gets the sessions of a node that is gone knows where partitions end, also those that
the same node has led; and all who ask at once ask leaders once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from lakemq.broker_core.api.errors import Unavailable
from lakemq.meta_service.control.failure_detector import HEARTBEAT_TIMEOUT_S
from lakemq.plugins.mqtt.homes.log_ends import ENDS_S, ROUND_S, LogEnds
from lakemq.plugins.mqtt.server.delay_log import REACH_S
from tests.support.mqtt.bench import Bench
from tests.support.virtual_time import run_virtually

LED, LOST, NEVER = (("t", number) for number in range(3))
ELECTED_S = HEARTBEAT_TIMEOUT_S + 0.3
"""A node is gone, and others lead what it has led."""


class Leaders:
    """Of three partitions: one answers at once, one when it leads, one never does."""

    def __init__(self) -> None:
        self.end = 7
        self.asked = 0

    def reader(self, topic: str, partition: int) -> Leader:
        self.asked += 1
        return Leader(self, (topic, partition))


class Leader:
    def __init__(self, leaders: Leaders, key: tuple[str, int]) -> None:
        self._leaders, self._key = leaders, key

    async def log_end(self) -> int:
        if self._key == NEVER:
            await asyncio.sleep(5.0)
            raise Unavailable("no node answers as the leader")
        if self._key == LOST:
            await asyncio.sleep(ELECTED_S - asyncio.get_running_loop().time())
        return self._leaders.end


def check(test: Callable[[LogEnds, Leaders], Coroutine[Any, Any, None]]) -> None:
    bench, leaders = Bench(), Leaders()
    bench.hub.positions = dict.fromkeys((LED, LOST, NEVER), 3)

    async def run() -> None:
        begin: Callable[..., object] = asyncio.ensure_future
        await test(LogEnds(bench.hub, leaders, begin), leaders)  # type: ignore[arg-type]

    run_virtually(run())


def test_the_next_leader_tells_what_the_one_that_is_gone_had_taken() -> None:
    """Else a QoS 2 publish that its followers have is stored again when its client comes again.
    Seed 12 of the simulation of whole engines was the first to show it. A partition that stays
    without a leader keeps clients out for a moment only."""

    async def test(ends: LogEnds, leaders: Leaders) -> None:
        assert await ends.find() == {LED: 7, LOST: 7}
        assert asyncio.get_running_loop().time() < ENDS_S + ROUND_S + 0.1

    check(test)


def test_so_it_is_where_the_log_of_delayed_publishes_has_lost_its_leader() -> None:
    """What is not delayed any more when that is known was published before partitions are asked."""

    async def test(ends: LogEnds, leaders: Leaders) -> None:
        async def reach() -> None:
            await asyncio.sleep(REACH_S)
            leaders.end = 8

        ends.reach = reach
        assert await ends.find() == {LED: 8, LOST: 8}
        assert asyncio.get_running_loop().time() < ENDS_S + ROUND_S + 0.1

    assert REACH_S > ELECTED_S
    check(test)


def test_who_asks_at_once_shares_the_answers_and_who_asks_later_does_not() -> None:
    async def test(ends: LogEnds, leaders: Leaders) -> None:
        first = [asyncio.ensure_future(ends.find()) for _ in range(100)]
        await asyncio.sleep(ROUND_S / 2)
        first[0].cancel()  # who gives up takes the answer from no other
        await asyncio.sleep(ROUND_S)
        assert leaders.asked == 3
        leaders.end = 9  # of what was appended since the leader of the first was asked
        second = asyncio.ensure_future(ends.find())
        assert (await second)[LED] == 9
        assert leaders.asked == 6
        assert {(await one)[LED] for one in first[1:]} == {7}

    check(test)
