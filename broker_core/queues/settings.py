"""Settings of a queue, and how they lie in the topic of queues."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from typing import Final

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.queues.types import GivenSettings, QueueSettings

ORDERS: Final = ("none", "key")
STARTS: Final = ("earliest", "latest")
_HOUR_MS: Final = 3_600_000
_RANGES: Final[dict[str, tuple[int, int]]] = {
    "lock_ms": (100, 12 * _HOUR_MS),
    "attempts_max": (0, 1000),
    "backoff_ms": (0, 24 * _HOUR_MS),
    "backoff_ms_max": (0, 24 * _HOUR_MS),
}


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


def known(given: GivenSettings | None) -> GivenSettings:
    """Raises InvalidRequest: no setting has that name, or its value is of another kind."""
    kinds = {field.name: type(field.default) for field in fields(QueueSettings)}
    for name, value in (given or {}).items():
        if name not in kinds:
            raise InvalidRequest(f"a queue has no setting {name!r}; it has {', '.join(kinds)}")
        if type(value) is not kinds[name]:
            raise InvalidRequest(f"{name} is {value!r}; it takes {kinds[name].__name__}")
    return given or {}


def agreed(settings: QueueSettings, given: GivenSettings) -> None:
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
    names = {field.name for field in fields(QueueSettings)}
    try:
        return checked(replace(QueueSettings(), **{k: v for k, v in values.items() if k in names}))
    except (TypeError, InvalidRequest) as error:
        raise ValueError(str(error)) from None
