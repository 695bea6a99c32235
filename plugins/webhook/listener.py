"""Starts and stops the webhooks of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.broker_core.api.ports import Broker
from lakemq.plugins.webhook.config import WebhookSettings
from lakemq.plugins.webhook.runner import HookRunner
from lakemq.plugins.webhook.sending import Counters


class WebhookService:
    """Implements the `Listener` port: the node starts and stops it like one, though it connects to
    others instead of listening."""

    name = "webhook"

    def __init__(self, broker: Broker, settings: WebhookSettings, meter: Meter) -> None:
        """Raises ConfigError: an environment variable is missing."""
        self._runners = [HookRunner(broker, each) for each in settings.hooks]
        self._tasks: list[asyncio.Task[None]] = []
        _observe(meter, self._runners)

    async def start(self) -> None:
        """Begin to run the webhooks that are this node's, in the background."""
        self._tasks = [asyncio.create_task(each.run()) for each in self._runners]

    def addresses(self) -> Sequence[str]:
        """None."""
        return []

    async def stop(self) -> None:
        """End requests; how far each webhook is gets stored."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _observe(meter: Meter, runners: Sequence[HookRunner]) -> None:
    def of(count: Callable[[Counters], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for each in runners:
                yield Observation(count(each.counters), {"webhook": each.settings.name})

        return observe

    meter.create_observable_counter(
        "lakemq.webhook.records", [of(lambda each: each.records)], "{record}",
        "Records that a webhook's service has taken.",
    )  # fmt: skip
    meter.create_observable_counter(
        "lakemq.webhook.failures", [of(lambda each: each.failures)], "{request}",
        "Requests of a webhook that were not answered with 2xx; they are sent again.",
    )  # fmt: skip
    meter.create_observable_counter(
        "lakemq.webhook.skipped", [of(lambda each: each.skipped)], "{record}",
        "Records that a webhook's service refused and that were left out.",
    )  # fmt: skip
    meter.create_observable_counter(
        "lakemq.webhook.lost", [of(lambda each: each.lost)], "{record}",
        "Records that were deleted before a webhook sent them.",
    )  # fmt: skip
