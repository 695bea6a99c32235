"""Times that commands take and print."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

from lakemq.broker_core.api.command_line.output import ExitCode, fail

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MS_MAX: Final = 253_402_300_799_999
"""The end of year 9999, the last that ISO 8601 has."""


def time_ms(option: str, text: str, now_ms: int | None = None) -> int:
    """`15m` ago, an ISO 8601 time (UTC where it names no zone), or milliseconds, as ms since 1970.
    Ends the command for anything else. `now_ms`: in place of the clock."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    ago = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if ago is not None:
        return max(0, now_ms - 1000 * int(ago[1]) * _UNITS_S[ago[2]])
    try:
        # Fewer digits are a day of ISO 8601 (20261122), or seconds, which nothing here takes.
        if re.fullmatch(r"[0-9]{12,15}", text) and int(text) <= _MS_MAX:
            return int(text)
        found = datetime.fromisoformat(text)
    except ValueError:
        fail(
            f"{option} {text!r}: it takes how long ago, like 15m, 2h, 1d, an ISO 8601 time, or "
            "milliseconds since 1970",
            ExitCode.USAGE,
        )
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def clock(at_ms: int | None) -> str:
    """ISO 8601 in UTC, without a zone; `-` for None; what no calendar has in milliseconds."""
    if at_ms is None:
        return "-"
    try:
        found = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
    return found.isoformat(timespec="milliseconds").removesuffix("+00:00")


def duration(seconds: float | None) -> str:
    """In the greatest unit of which there are two or more; `-` for None."""
    if seconds is None:
        return "-"
    for unit, unit_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"
