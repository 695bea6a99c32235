"""Sends at a fixed rate, whether or not the broker keeps up, and notes how long acks take.

A latency counts from when the record was due, not from when it could be sent at last: a broker, or
a client, that falls behind shows in it (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError

IN_FLIGHT_MAX: Final = 10_000
"""Records that wait for their ack at once; the next are sent later, and are late."""
_TICK_S: Final = 0.002
_LAST_ACKS_S: Final = 10.0
"""After the last record was sent."""


@dataclass
class Outcome:
    """Of one load. Every record is in exactly one of acknowledged, failed and unanswered."""

    offered: int
    latencies_ms: list[float] = field(default_factory=list)
    """Of those that were acknowledged."""
    failed: int = 0
    unanswered: int = 0
    """No ack came in time, or the broker was so far behind that it was never sent."""
    problem: str = ""
    """Why the first of them failed."""
    elapsed_s: float = 0.0
    """From the begin to the last ack."""

    @property
    def acknowledged(self) -> int:
        return len(self.latencies_ms)

    @property
    def rate(self) -> float:
        """Acknowledged records a second."""
        return self.acknowledged / self.elapsed_s if self.elapsed_s > 0 else 0.0


def percentile(sorted_values: Sequence[float], share: float) -> float | None:
    """The nearest rank; None: there are no values. `share`: 0 to 1."""
    if not sorted_values:
        return None
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


async def offer(
    send: Callable[[], Awaitable[object]],
    *,
    rate: float,
    seconds: float,
    in_flight_max: int = IN_FLIGHT_MAX,
    last_acks_s: float = _LAST_ACKS_S,
) -> Outcome:
    """`send`: one record; returns at its ack, raises LakeMQError or OSError. `rate`: records a
    second. `seconds`: how long they are offered. Ends at most `last_acks_s` later."""
    outcome = Outcome(max(1, round(rate * seconds)))
    waiting: set[asyncio.Task[None]] = set()
    began_s = time.perf_counter()
    given_up_s = began_s + outcome.offered / rate + last_acks_s

    async def one(due_s: float) -> None:
        try:
            await send()
        except (LakeMQError, OSError) as error:
            outcome.failed += 1
            outcome.problem = outcome.problem or str(error)
        else:
            now_s = time.perf_counter()
            outcome.latencies_ms.append(1000 * (now_s - due_s))
            outcome.elapsed_s = now_s - began_s

    sent = 0
    try:
        while sent < outcome.offered and time.perf_counter() < given_up_s:
            due = min(outcome.offered, int((time.perf_counter() - began_s) * rate) + 1)
            while sent < due and len(waiting) < in_flight_max:
                task = asyncio.create_task(one(began_s + sent / rate))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
                sent += 1
            await asyncio.sleep(_TICK_S)
        if waiting:
            await asyncio.wait(waiting, timeout=max(0.0, given_up_s - time.perf_counter()))
        outcome.unanswered = outcome.offered - outcome.acknowledged - outcome.failed
    finally:
        late = list(waiting)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    return outcome
