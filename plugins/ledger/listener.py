"""Starts and stops the ledgers of a node, and shows them to operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.broker_core.api.administration.routes import AnyRoute
from lakemq.broker_core.api.errors import LakeMQError, StartupError
from lakemq.broker_core.api.ports import Broker
from lakemq.plugins.ledger.config import LedgerSettings
from lakemq.plugins.ledger.keeper import LedgerKeeper


class LedgerService:
    """Implements the `Listener` port: the node starts and stops it like one, though nothing
    connects to it."""

    name = "ledger"

    def __init__(self, broker: Broker, settings: LedgerSettings, meter: Meter) -> None:
        self._broker = broker
        self.keeper = LedgerKeeper(broker, settings)
        _observe(meter, self.keeper)

    def admin_routes(self) -> Sequence[AnyRoute]:
        """The lists of `/api/v1/ledger`."""
        # Models and routes come when the admin API is asked for something.
        from lakemq.plugins.ledger.routes import LedgerRoutes

        return LedgerRoutes(self._broker, self.keeper, _now_ms).routes()

    def reconfigure(self, settings: LedgerSettings) -> Callable[[], None]:
        """See `Reconfigurable`."""

        def apply() -> None:
            self.keeper.settings = settings

        return apply

    async def start(self) -> None:
        """Take up what was counted before. Raises StartupError."""
        try:
            await self.keeper.start()
        except LakeMQError as error:
            raise StartupError(f"ledger: {error}") from error

    def addresses(self) -> Sequence[str]:
        """None."""
        return []

    async def stop(self) -> None:
        """Store what was counted."""
        await self.keeper.stop()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _observe(meter: Meter, keeper: LedgerKeeper) -> None:
    def records(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(keeper.counted)

    def devices(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(sum(len(each.table.devices) for each in keeper.ledgers()))

    def failures(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(keeper.failures)

    meter.create_observable_counter(
        "lakemq.ledger.records", [records], "{record}", "Records counted for completeness."
    )
    meter.create_observable_gauge(
        "lakemq.ledger.devices", [devices], "{device}", "Devices known in partitions led here."
    )
    meter.create_observable_counter(
        "lakemq.ledger.failures", [failures], "{failure}", "Turns that failed and are tried again."
    )
