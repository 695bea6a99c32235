"""A plugin's meter that outlives its code: OpenTelemetry keeps the callbacks that an observable
instrument was made with, which would be those of the code that has gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from opentelemetry.metrics import (
    CallbackOptions,
    CallbackT,
    Counter,
    Histogram,
    Meter,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
    Observation,
    UpDownCounter,
)

Callbacks = dict[str, list[CallbackT]]
"""Name of an instrument -> what observes it."""


class _InUse:
    callbacks: Callbacks


class PluginMeter(Meter):
    """Instruments of one plugin's code; those of a name are one instrument, whatever made them."""

    def __init__(self, meter: Meter, in_use: _InUse | None = None) -> None:
        super().__init__(meter.name, meter.version, meter.schema_url)
        self._meter = meter
        self._own: Callbacks = {}
        self._in_use = in_use or _InUse()
        if in_use is None:
            self.use()

    def renewed(self) -> PluginMeter:
        """For other code of the same plugin: its callbacks are asked from `use` on."""
        return PluginMeter(self._meter, self._in_use)

    def use(self) -> None:
        """Have the callbacks asked that were made by this meter, and no others."""
        self._in_use.callbacks = self._own

    def _observed(
        self, create: Callable[..., Any], name: str, callbacks: Sequence[CallbackT] | None,
        unit: str, description: str,
    ) -> Any:  # fmt: skip
        # As in OpenTelemetry, the first one's callbacks count.
        self._own.setdefault(name, list(callbacks or ()))
        in_use = self._in_use

        def observe(options: CallbackOptions) -> Iterable[Observation]:
            for callback in in_use.callbacks.get(name, ()):
                asked = callback(options) if callable(callback) else next(callback)
                yield from asked

        return create(name, [observe], unit, description)

    # -- `Meter`

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Counter:
        """See `Meter`."""
        return self._meter.create_counter(name, unit, description)

    def create_up_down_counter(
        self, name: str, unit: str = "", description: str = ""
    ) -> UpDownCounter:
        """See `Meter`."""
        return self._meter.create_up_down_counter(name, unit, description)

    def create_histogram(
        self, name: str, unit: str = "", description: str = "", **more: Any
    ) -> Histogram:
        """See `Meter`."""
        return self._meter.create_histogram(name, unit, description, **more)

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> Any:
        """See `Meter`."""
        return self._meter.create_gauge(name, unit, description)

    def create_observable_counter(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "",
        description: str = "",
    ) -> ObservableCounter:  # fmt: skip
        """See `Meter`."""
        made: ObservableCounter = self._observed(
            self._meter.create_observable_counter, name, callbacks, unit, description
        )
        return made

    def create_observable_gauge(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "",
        description: str = "",
    ) -> ObservableGauge:  # fmt: skip
        """See `Meter`."""
        made: ObservableGauge = self._observed(
            self._meter.create_observable_gauge, name, callbacks, unit, description
        )
        return made

    def create_observable_up_down_counter(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "",
        description: str = "",
    ) -> ObservableUpDownCounter:  # fmt: skip
        """See `Meter`."""
        made: ObservableUpDownCounter = self._observed(
            self._meter.create_observable_up_down_counter, name, callbacks, unit, description
        )
        return made
