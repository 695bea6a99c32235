"""Settings of a queue, and how they lie in the topic of queues."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Final

from lakemq.broker_core.api.errors import InvalidRequest

ORDERS: Final = ("none", "key")
STARTS: Final = ("earliest", "latest")
_HOUR_MS: Final = 3_600_000
_RANGES: Final[dict[str, tuple[int, int]]] = {
    "lock_ms": (100, 12 * _HOUR_MS),
    "attempts_max": (0, 1000),
    "backoff_ms": (0, 24 * _HOUR_MS),
    "backoff_ms_max": (0, 24 * _HOUR_MS),
}


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of a queue, the same for all its consumers."""

    lock_ms: int = 30_000
    """How long a delivered record stays locked for its consumer (ms)."""
    attempts_max: int = 0
    """Failed deliveries after which a record goes to `dead_letter`; 0: it never does."""
    dead_letter: str = ""
    """Topic of dead letters; empty: there is none."""
    order: str = "none"
    """`key`: of each key one record at a time, the oldest first; `none`: any record at any time."""
    backoff_ms: int = 1000
    """Pause before the second delivery of a record that was handed back; doubles each time (ms)."""
    backoff_ms_max: int = 60_000
    """Longest pause (ms)."""
    start: str = "earliest"
    """`earliest` or `latest`: where a new queue, or a partition that is new to it, begins."""

    def backoff_of(self, attempts: int) -> int:
        """Pause before the next delivery, after `attempts` of them (ms)."""
        # The shift is bounded because attempts need not be: the number would grow without end.
        return min(self.backoff_ms_max, self.backoff_ms << min(20, max(0, attempts - 1)))


def checked(settings: QueueSettings) -> QueueSettings:
    """Raises InvalidRequest, naming the setting."""
    for name, (low, high) in _RANGES.items():
        value = getattr(settings, name)
        if not low <= value <= high:
            raise InvalidRequest(f"{name} is {value}; it takes {low} to {high}")
    if settings.order not in ORDERS:
        raise InvalidRequest(f"order is {settings.order!r}; it takes none or key")
    if settings.start not in STARTS:
        raise InvalidRequest(f"start is {settings.start!r}; it takes earliest or latest")
    if settings.attempts_max and not settings.dead_letter:
        raise InvalidRequest("attempts_max needs dead_letter: records are never dropped")
    return settings


def agreed(settings: QueueSettings, given: dict[str, str | int]) -> None:
    """Raises InvalidRequest if a consumer asks for settings other than those of the queue."""
    for name, value in given.items():
        holds = getattr(settings, name)
        if value != holds:
            raise InvalidRequest(
                f"{name} of this queue is {holds!r}, not {value!r}; it is changed by "
                "`lakemq queue alter`"
            )


def encode_settings(settings: QueueSettings) -> bytes:
    """Settings as JSON."""
    return json.dumps(asdict(settings)).encode()


def decode_settings(data: bytes) -> QueueSettings:
    """JSON -> settings; those of a newer version are left out. ValueError: no settings."""
    try:
        values = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(values, dict):
        raise ValueError("not an object")
    known = {field.name for field in fields(QueueSettings)}
    try:
        return checked(replace(QueueSettings(), **{k: v for k, v in values.items() if k in known}))
    except (TypeError, InvalidRequest) as error:
        raise ValueError(str(error)) from None
