"""What interceptors did -> OpenTelemetry observable instruments, read when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.broker_core.publishing.interception import Calls, Interception


def register_interception_metrics(meter: Meter, interception: Interception) -> None:
    """One instrument per number, with the plugin as attribute."""
    growing: dict[str, tuple[Callable[[Calls], float], str, str]] = {
        "calls": (lambda calls: calls.calls, "{call}", "Groups of records shown to interceptors."),
        "failures": (
            lambda calls: calls.failures,
            "{call}",
            "Calls that raised or gave unusable columns.",
        ),
        "slow": (
            lambda calls: calls.slow,
            "{call}",
            "Calls that held the node up for longer than `budget_ms`.",
        ),
        "time": (lambda calls: calls.seconds, "s", "Time in which the node did nothing else."),
    }
    for name, (read, unit, description) in growing.items():
        meter.create_observable_counter(
            f"lakemq.interceptors.{name}",
            [_callback(read, interception)],
            unit,
            description,
        )

    meter.create_observable_gauge(
        "lakemq.interceptors.quarantined",
        [
            lambda _: [
                Observation(len(found), {"plugin": plugin})
                for plugin, found in interception.quarantines().items()
            ]
        ],
        "{quarantine}",
        "Quarantines that last: topics for which the plugin is not called, or all of them.",
    )
    meter.create_observable_counter(
        "lakemq.interceptors.quarantines",
        [
            lambda _: [
                Observation(interception.begun(plugin), {"plugin": plugin})
                for plugin in interception.calls
            ]
        ],
        "{quarantine}",
        "Times that a plugin was quarantined.",
    )


def _callback(
    read: Callable[[Calls], float], interception: Interception
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [
        Observation(read(calls), {"plugin": plugin}) for plugin, calls in interception.calls.items()
    ]
