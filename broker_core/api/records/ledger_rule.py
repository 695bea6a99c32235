"""What a topic's setting `ledger` says: whose records are counted, and what tells that some are
missing. `docs/ledger.md` describes it. Pure.

    device=client; sequence=$.seq; first=0
    device=$.station; interval=10s; time=$.at
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import InvalidRequest

RULE_MAX_CHARS: Final = 249
CLIENT_HEADER: Final = "mqtt.client"
"""Client id of the publisher; no client can forge it."""
NUMBER_MAX: Final = 2**53
"""Sequence numbers and times lie below: what every JSON decoder holds exactly."""
_KNOWN: Final = ("device", "sequence", "interval", "time", "first", "wrap", "from")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_INTERVAL: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_WRAP_MIN: Final = 16


class Place(NamedTuple):
    """Where in a record something stands."""

    kind: str
    """`key`, `header` or `field`."""
    path: tuple[str, ...] = ()
    """The header's name; or names of fields of a JSON object, the outermost first."""


KEY: Final = Place("key")


@dataclass(frozen=True)
class LedgerRule:
    """The setting, decoded. One of `sequence` and `interval_ms` is given."""

    device: Place = KEY
    sequence: Place | None = None
    interval_ms: int = 0
    """Time within which each device sends a record; 0: `sequence` counts."""
    time: Place | None = None
    """When the device took its reading; None: the record's timestamp."""
    first: int | None = None
    """The number that a device begins with again when it was restarted."""
    wrap: int = 0
    """Behind this number less one comes 0; 0: numbers only grow."""
    from_latest: bool = False
    """Records that the topic has already do not count."""


def ledger_rule(text: str) -> LedgerRule | None:
    """None: the topic asks for no ledger. Raises InvalidRequest, saying what is wrong."""
    if not text.strip():
        return None
    given = _given(text)
    if ("sequence" in given) == ("interval" in given):
        raise _wrong("give either sequence=... or interval=...")
    for name in ("first", "wrap"):
        if name in given and "sequence" not in given:
            raise _wrong(f"{name} goes with sequence")
    if "first" in given and "wrap" in given:
        raise _wrong("first and wrap do not go together: numbers that wrap begin again anyway")
    if given.get("from", "earliest") not in ("earliest", "latest"):
        raise _wrong(f"from is {given['from']!r}; it takes earliest or latest")
    return LedgerRule(
        device=_place("device", given.get("device", "key"), is_device=True),
        sequence=_place("sequence", given["sequence"]) if "sequence" in given else None,
        interval_ms=_interval_ms(given["interval"]) if "interval" in given else 0,
        time=_place("time", given["time"]) if "time" in given else None,
        first=_number("first", given["first"], 0) if "first" in given else None,
        wrap=_number("wrap", given["wrap"], _WRAP_MIN) if "wrap" in given else 0,
        from_latest=given.get("from") == "latest",
    )


def _given(text: str) -> dict[str, str]:
    if len(text) > RULE_MAX_CHARS:
        raise _wrong(f"it has {len(text)} characters; {RULE_MAX_CHARS} is the most")
    given: dict[str, str] = {}
    for part in text.split(";"):
        name, _, value = (each.strip() for each in part.partition("="))
        if name not in _KNOWN:
            raise _wrong(f"{name!r} is unknown; known: {', '.join(_KNOWN)}")
        if not value or name in given:
            raise _wrong(f"{name} takes one value, like {name}=...")
        given[name] = value
    return given


def _wrong(why: str) -> InvalidRequest:
    return InvalidRequest(f"ledger: {why}")


def _place(name: str, text: str, *, is_device: bool = False) -> Place:
    if is_device and text == "key":
        return KEY
    if is_device and text == "client":
        return Place("header", (CLIENT_HEADER,))
    kind, colon, header = text.partition(":")
    if kind == "header" and colon and header:
        return Place("header", (header,))
    path = tuple(text.removeprefix("$.").split("."))
    if not text.startswith("$.") or not all(path):
        words = "key, client, " if is_device else ""
        raise _wrong(f"{name} is {text!r}; it takes {words}header:NAME or $.field.of.a.JSON.object")
    return Place("field", path)


def _interval_ms(text: str) -> int:
    match = _INTERVAL.fullmatch(text)
    value = int(match[1]) * _UNITS_MS[match[2]] if match else 0
    if not 0 < value <= 366 * _UNITS_MS["d"]:
        raise _wrong(f"interval is {text!r}; it takes 1ms to 366d, in ms, s, m, h or d")
    return value


def _number(name: str, text: str, least: int) -> int:
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 17 else -1
    if not least <= value < NUMBER_MAX:
        raise _wrong(f"{name} is {text!r}; it takes a whole number from {least}")
    return value
