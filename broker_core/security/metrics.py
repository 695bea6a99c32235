"""Plain numbers of logins and quotas -> OpenTelemetry observable instruments, read when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Meter, Observation

if TYPE_CHECKING:
    from lakemq.broker_core.security.assembly import Security

Read = Callable[[], float]


def register_metrics(meter: Meter, security: Security) -> None:
    """One instrument per number; nothing is done until they are read."""
    access, checker = security.access, security.checker
    growing: dict[str, tuple[Read, str, str]] = {
        "logins.accepted": (
            lambda: access.accepted, "{login}", "Clients let in; with native, each call."
        ),
        "logins.refused": (lambda: access.refused, "{login}", "Clients not let in."),
        "logins.hasty": (
            lambda: security.attempts.refused, "{login}", "Refused unseen after many failures."
        ),
        "passwords.checked": (
            lambda: checker.hashed, "{password}", "Passwords checked by argon2 or SCRAM keys."
        ),
        "passwords.turned_away": (
            lambda: checker.refused, "{login}", "Refused because too many were waiting."
        ),
        "authorizers.questions": (
            lambda: sum(each.questions for each in security.http_authorizers),
            "{question}",
            "Web services asked what a client may do.",
        ),
        "authorizers.failures": (
            lambda: sum(each.failures for each in security.http_authorizers),
            "{question}",
            "Questions that web services did not answer.",
        ),
        "quota.waits": (
            lambda: security.quotas.waits_ms / 1000, "s", "Waits for quotas, added up."
        ),
    }  # fmt: skip
    for name, (read, unit, description) in growing.items():
        meter.create_observable_counter(
            f"lakemq.security.{name}", [_callback(read)], unit, description
        )


def _callback(read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(read())]
