"""Start and end offsets of an export, as users write them: `1000`, or `{"0": 1000, "1": 40}`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from lakemq.spark_plugin.errors import OptionError


def parse_bound(option: str, text: str) -> int | dict[int, int]:
    """One offset for every partition, or one for each that is named. OptionError."""
    if text.isdecimal():
        return int(text)
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not value or not all(map(str.isdecimal, value)):
        raise _error(option, text)
    if not all(type(each) is int and each >= 0 for each in value.values()):
        raise _error(option, text)
    return {int(partition): offset for partition, offset in value.items()}


def _error(option: str, text: str) -> OptionError:
    return OptionError(f'{option} is {text!r}; it takes an offset, or {{"0": 1000, "1": 40}}')


def bounded(offsets: Mapping[int, int], bound: int | Mapping[int, int]) -> dict[int, int]:
    """Ends of partitions, none above the bound."""
    limits = dict.fromkeys(offsets, bound) if isinstance(bound, int) else bound
    return {
        partition: min(offset, limits.get(partition, offset))
        for partition, offset in offsets.items()
    }
