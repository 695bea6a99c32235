"""Jinja, and how values are shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

_HERE: Final = Path(__file__).parent
_STATES: Final = {
    "ok": "ok", "online": "ok", "active": "ok", "connected": "ok", "done": "ok", "stable": "ok",
    "on": "ok", "allow": "ok",
    "draining": "warn", "under-replicated": "warn", "moving": "warn", "rebalancing": "warn",
    "waiting": "warn", "staging": "warn", "applying": "warn", "warning": "warn",
    "fenced": "bad", "offline": "bad", "leaderless": "bad", "under-min-in-sync": "bad",
    "failed": "bad", "quarantined": "bad", "refused": "bad", "deny": "bad", "failing": "bad",
}  # fmt: skip
_SIGNS: Final = {"ok": "✓", "warn": "▲", "bad": "✕", "off": "○"}
_SIZES: Final = ("B", "kB", "MB", "GB", "TB", "PB")


def number(value: float | None) -> str:
    """`12,345`; a dash for null."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}".rstrip("0").rstrip(".")


def short(value: float | None) -> str:
    """`12.3 k`, for tiles."""
    if value is None:
        return "–"
    for limit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if name == 'k' else limit):.1f} {name}"
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.1f}"


def size(value: float | None) -> str:
    """Bytes: `7.8 MB`."""
    if value is None:
        return "–"
    left = float(value)
    for unit in _SIZES:
        if abs(left) < 1000 or unit == _SIZES[-1]:
            break
        left /= 1000
    return f"{left:.0f} {unit}" if unit == "B" else f"{left:.1f} {unit}"


def duration(value_ms: float | None) -> str:
    """`7 d`, `1.5 s`; null is for ever."""
    if value_ms is None:
        return "for ever"
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if value_ms >= length:
            return f"{value_ms / length:.1f}".removesuffix(".0") + f" {unit}"
    return f"{value_ms:.0f} ms"


def moment(value_ms: int | None) -> str:
    """`2026-11-22 17:17:08.956`, UTC."""
    if value_ms is None:
        return "–"
    try:
        at = datetime.fromtimestamp(value_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{value_ms} ms"
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{value_ms % 1000:03}"


def time_of(value_ms: int | None) -> Markup:
    """The same, for a browser to add the local time."""
    if value_ms is None:
        return Markup("–")
    shown = moment(value_ms)
    return Markup('<time datetime="{}Z">{}</time>').format(shown.replace(" ", "T"), shown)


def pill(state: object) -> Markup:
    """A state: sign, word and colour."""
    kind = _STATES.get(str(state), "off")
    return Markup('<span class="pill {}"><span aria-hidden="true">{}</span> {}</span>').format(
        kind, _SIGNS[kind], state
    )


def listed(values: object) -> str:
    """`a, b`; a mapping as `a 1, b 2`."""
    if isinstance(values, Mapping):
        return ", ".join(f"{name} {value}" for name, value in values.items()) or "–"
    if isinstance(values, list | tuple):
        return ", ".join(map(str, values)) or "–"
    return str(values)


def pretty(value: object) -> str:
    """JSON over several lines."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def shown(value: object, kind: str = "text") -> str | Markup:
    """A cell of a table."""
    if value is None and kind not in ("duration",):
        return "–"
    if value == "":  # of a column that shows nothing here
        return ""
    formats: Mapping[str, Any] = {
        "number": number, "size": size, "duration": duration, "time": time_of, "state": pill,
        "list": listed, "short": short,
    }  # fmt: skip
    if kind in formats:
        return escape(formats[kind](value))
    if kind == "yes":
        return "yes" if value else "no"
    if kind == "json":
        return Markup("<pre>{}</pre>").format(pretty(value))
    return "–" if value == "" else str(value)


def environment(version: str) -> Environment:
    """Templates; names that are not known are errors. `version`: what browsers keep static files
    by."""
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": number, "short": short, "size": size, "duration": duration, "time": time_of,
        "pill": pill, "listed": listed, "pretty": pretty,
    }  # fmt: skip
    made.globals |= {
        "shown": shown,
        "version": version,
        "has_scripts": has_scripts(),
    }
    return made


STATIC: Final = _HERE / "static"
"""Style and scripts; `vendor` below it holds those of third parties (`make dashboard-assets`)."""


def has_scripts() -> bool:
    """Whether those of third parties are there: in a wheel always, in a checkout once made."""
    return (STATIC / "vendor" / "htmx.min.js").is_file()
