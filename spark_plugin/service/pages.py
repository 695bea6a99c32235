"""Status of a running export, for people (HTML), programs (JSON) and probes. Pure."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from lakemq.spark_plugin.export.job.metrics import ExportMetrics

_HEAD = (
    "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=5>"
    "<title>lakemq export</title><style>body{font:14px sans-serif;margin:2em}"
    "td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ccc}"
    "td:first-child,th:first-child,td:last-child{text-align:left}</style><h1>lakemq export</h1>"
)
_COLUMNS = ("rows", "lag", "commits", "dead_letters", "tombstones", "failures")


class Page(NamedTuple):
    """An answer to GET."""

    status: str
    """As HTTP has it: `200 OK`."""
    content_type: str
    body: bytes


def page(path: str, exports: Sequence[ExportMetrics], now_s: float) -> Page:
    """The page of a path, at `now_s` (s since 1970)."""
    if path == "/":
        return Page("200 OK", "text/html; charset=utf-8", _html(exports, now_s).encode())
    if path == "/status":
        return Page("200 OK", "application/json", json.dumps(status(exports)).encode())
    if path == "/healthz":
        failing = [each for each in exports if each.error]
        said = "".join(f"{each.topic}: {each.error}\n" for each in failing) or "ok\n"
        code = "503 Service Unavailable" if failing else "200 OK"
        return Page(code, "text/plain; charset=utf-8", said.encode())
    return Page("404 Not Found", "text/plain; charset=utf-8", b"/, /status, /healthz, /metrics\n")


def status(exports: Sequence[ExportMetrics]) -> list[dict[str, Any]]:
    """One object for each export."""
    return [
        {
            "topic": each.topic,
            "export": each.export_id,
            **{name: getattr(each, name) for name in _COLUMNS},
            "last_commit_s": each.last_commit_s or None,
            "error": each.error or None,
        }
        for each in exports
    ]


def _html(exports: Sequence[ExportMetrics], now_s: float) -> str:
    titles = ("topic", "export", *_COLUMNS, "last commit", "error")
    head = "".join(f"<th>{title.replace('_', ' ')}" for title in titles)
    rows = "".join(f"<tr>{_cells(each, now_s)}" for each in exports)
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    return f"{_HEAD}<table><tr>{head}{rows}</table><p>{at} &middot; <a href=/metrics>/metrics</a>"


def _cells(each: ExportMetrics, now_s: float) -> str:
    ago = f"{max(0.0, now_s - each.last_commit_s):,.0f} s ago" if each.last_commit_s else ""
    numbers = [f"{getattr(each, name):,}" for name in _COLUMNS]
    texts = (each.topic, each.export_id, *numbers, ago, each.error)
    return "".join(f"<td>{html.escape(text)}" for text in texts)
