"""Configuration as a dictionary -> TOML, which Python reads and does not write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Tables as sections, tables in lists inline. Raises TypeError for what TOML cannot hold."""
    lines = [
        f"{_key(name)} = {_inline(value)}"
        for name, value in values.items()
        if not isinstance(value, Mapping)
    ]
    if path and (lines or not values):
        lines.insert(0, f"[{'.'.join(map(_key, path))}]")
    tables = [
        toml_text(value, (*path, name))
        for name, value in values.items()
        if isinstance(value, Mapping)
    ]
    return "\n".join(["\n".join(lines) + "\n", *tables] if lines else tables)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both, table by table; where both say something, `over` holds."""
    found = dict(base)
    for name, value in over.items():
        before = found.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            found[name] = merged(before, value)
        else:
            found[name] = value
    return found


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(value: str) -> str:
    # JSON's escapes are TOML's too, but for halves of characters, which need none in UTF-8; TOML
    # wants DEL escaped as well.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _inline(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_inline(v)}" for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_inline, value)) + "]"
    raise TypeError(f"{value!r}: TOML has no {type(value).__name__}")
