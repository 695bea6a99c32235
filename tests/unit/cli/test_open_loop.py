"""Goal: a load keeps its rate whatever the broker does, and latencies hide no falling behind."""

from __future__ import annotations

import asyncio

import pytest

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.cli.load.open_loop import offer, percentile


async def test_every_record_is_offered_and_counted_once() -> None:
    sent = 0

    async def send() -> None:
        nonlocal sent
        sent += 1
        if sent % 10 == 0:
            raise LakeMQError(f"no room for {sent}")

    outcome = await offer(send, rate=1000, seconds=0.1)
    assert (sent, outcome.offered, outcome.failed, outcome.unanswered) == (100, 100, 10, 0)
    assert outcome.acknowledged == 90 and outcome.problem == "no room for 10"
    assert outcome.elapsed_s >= 0.09 and outcome.rate <= 90 / 0.09


async def test_a_broker_that_falls_behind_shows_in_latencies() -> None:
    one_at_once = asyncio.Lock()

    async def send() -> None:  # takes 50 a second, of 500 that are offered
        async with one_at_once:
            await asyncio.sleep(0.02)

    outcome = await offer(send, rate=500, seconds=0.04, in_flight_max=2)
    assert outcome.acknowledged == 20
    # The 20th was due after 38 ms and could begin after 380: timed from its sending, with one
    # before it, it would have taken 40.
    assert max(outcome.latencies_ms) > 300


async def test_what_is_never_answered_ends_the_load() -> None:
    outcome = await offer(
        asyncio.Event().wait, rate=100, seconds=0.05, in_flight_max=2, last_acks_s=0.05
    )
    assert (outcome.acknowledged, outcome.unanswered, outcome.rate) == (0, 5, 0.0)
    assert len(asyncio.all_tasks()) == 1  # nothing waits on


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [([], 0.5, None), ([7.0], 0.99, 7.0), ([float(n) for n in range(100)], 0.99, 99.0),
     ([1.0, 2.0, 3.0], 0.5, 2.0)],
)  # fmt: skip
def test_percentiles(values: list[float], share: float, found: float | None) -> None:
    assert percentile(values, share) == found
