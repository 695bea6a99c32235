"""What nodes tell at `/metrics`, as numbers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families

Series = dict[str, dict[frozenset[tuple[str, str]], float]]
"""Name in Prometheus -> attributes -> value."""
Now = Mapping[str, float]
"""Name as in docs/metrics.md, less `lakemq.` -> sum over its series, and over nodes."""


@cache
def listed() -> Mapping[str, str]:
    """Name in Prometheus -> name, of what nodes tell (docs/metrics.md)."""
    page = Path("docs/metrics.md").read_text().partition("\n## Exports")[0]
    return {p: name for name, p in re.findall(r"^\| `([^`]+)` \| `([^`]+)`", page, re.MULTILINE)}


def scraped(admin: str, authorization: str = "") -> Series:
    """Of the node whose admin API is at `admin` (`host:port`)."""
    headers = {"Authorization": authorization} if authorization else {}
    with urlopen(Request(f"http://{admin}/metrics", headers=headers), timeout=30) as answer:
        text = answer.read().decode()
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ((k, v) for k, v in sample.labels.items() if not k.startswith("otel_scope"))
            found.setdefault(sample.name, {})[frozenset(labels)] = sample.value
    return found


def now(*admins: str, authorization: str = "") -> Now:
    """What these nodes tell from now on, added up; 0 of what none of them tells."""
    sums = {name.removeprefix("lakemq."): 0.0 for name in listed().values()}
    for admin in admins:
        for shown, series in _collected(admin, authorization).items():
            if name := listed().get(shown):
                sums[name.removeprefix("lakemq.")] += sum(series.values())
    return sums


def _collected(admin: str, authorization: str) -> Series:
    """Nodes collect once a second at most: what they tell may be from before this was called."""
    earlier = scraped(admin, authorization)["process_uptime_seconds"]
    while (told := scraped(admin, authorization))["process_uptime_seconds"] == earlier:
        time.sleep(0.1)
    return told


def wait_for(tell: Callable[[], Now], holds: Callable[[Now], bool], timeout_s: float = 30) -> Now:
    """Ask until it holds; what was told then."""
    deadline = time.monotonic() + timeout_s
    while not holds(told := tell()):
        assert time.monotonic() < deadline, told
    return told


def still(before: Now, after: Now, *names: str) -> list[str]:
    """Those of these counters that have no more than before."""
    return [name for name in names if after[name] <= before[name]]
