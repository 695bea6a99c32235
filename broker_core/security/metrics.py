"""Plain numbers of logins and quotas -> OpenTelemetry observable instruments, read when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Meter, Observation

if TYPE_CHECKING:
    from lakemq.broker_core.security.assembly import Security

Read = Callable[[], int]


def register_metrics(meter: Meter, security: Security) -> None:
    """One instrument per number; nothing is done until they are read."""
    access, checker = security.access, security.checker
    growing: dict[str, tuple[Read, str]] = {
        "logins.accepted": (lambda: access.accepted, "clients let in; with native, each call"),
        "logins.refused": (lambda: access.refused, "clients not let in"),
        "logins.hasty": (lambda: security.attempts.refused, "refused unseen after many failures"),
        "passwords.checked": (lambda: checker.hashed, "passwords checked by argon2 or SCRAM keys"),
        "passwords.turned_away": (
            lambda: checker.refused,
            "logins refused because too many were waiting",
        ),
        "authorizers.questions": (
            lambda: sum(each.questions for each in security.http_authorizers),
            "web services asked what a client may do",
        ),
        "authorizers.failures": (
            lambda: sum(each.failures for each in security.http_authorizers),
            "questions that they did not answer",
        ),
        "quota.waits": (lambda: security.quotas.waits_ms, "waits for quotas, together (ms)"),
    }
    for name, (read, description) in growing.items():
        meter.create_observable_counter(
            f"lakemq.security.{name}", [_callback(read)], description=description
        )


def _callback(read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(read())]
