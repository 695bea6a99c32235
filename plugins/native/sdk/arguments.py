"""What callers give in place of what the signatures name: taken where its meaning is plain, else
refused in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Final

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.types import Acks, Compression

_ACKS: Final = {each.name.lower(): each for each in Acks} | {"all": Acks.REPLICATED}
_COMPRESSIONS: Final = {each.name.lower(): each for each in Compression}
_KAFKA: Final = {
    "auto_offset_reset": "start",
    "enable_auto_commit": "auto_commit",
    "group_id": "group",
    "group_instance_id": "instance_id",
    "max_poll_interval_ms": "rebalance_timeout_ms",
}
"""What Kafka's clients call an option -> what it is called here."""


Config = Mapping[str, str | int | None]
"""Settings of a topic; None: without limit."""


def acks_given(acks: object) -> Acks:
    """An `Acks`, its number, or its name: `memory`, `leader`, `replicated`; `all`, Kafka's word,
    means `replicated`."""
    if isinstance(acks, str) and (found := _ACKS.get(acks.lower())) is not None:
        return found
    if isinstance(acks, int) and not isinstance(acks, bool) and acks in set(Acks):
        return Acks(acks)
    raise InvalidRequest(f"acks is {acks!r}; it takes an Acks or one of {_listed(_ACKS)}")


def compression_given(compression: object) -> Compression:
    """A `Compression`, or its name: `none`, `lz4`, `zstd`."""
    if isinstance(compression, Compression):
        return compression
    found = _COMPRESSIONS.get(compression.lower()) if isinstance(compression, str) else None
    if found is None:
        raise InvalidRequest(
            f"compression is {compression!r}; it takes a Compression or one of "
            f"{_listed(_COMPRESSIONS)}"
        )
    return found


def config_given(config: Config | None) -> dict[str, str]:
    """Settings of a topic as text; a number, True or False, and None (no limit) will do."""
    if config is not None and not isinstance(config, Mapping):
        raise InvalidRequest(f"config is of type {type(config).__name__}; it takes a dict")
    found = {}
    for name, value in (config or {}).items():
        if value is None:
            text = "none"
        elif isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, str | int):
            text = str(value)
        else:
            raise InvalidRequest(
                f"config {name} is of type {type(value).__name__}; it takes text, a whole number, "
                "True, False or None"
            )
        if not isinstance(name, str):
            raise InvalidRequest(f"config {name!r}: a setting's name is text")
        found[name] = text
    return found


def count_given(name: str, count: object) -> int:
    """A number of partitions or replicas as the protocol has it: 0 for the broker's default."""
    if count is None:
        return 0
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidRequest(f"{name} is {count!r}; it takes 1 or more, or None")
    return count


def check_options(caller: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises InvalidRequest, naming an option that does not exist and the nearest one that does."""
    names = sorted(known)
    for name in given:
        if name in names:
            continue
        near = get_close_matches(name, names, 1) or [_KAFKA.get(name, "")]
        hint = f"did you mean {near[0]!r}?" if near[0] else f"there are {', '.join(names)}"
        raise InvalidRequest(f"{caller} has no option {name!r}; {hint}")


def moment_ms(name: str, moment: object) -> int:
    """Milliseconds since the epoch, of such a number or of a datetime with a time zone."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidRequest(f"{name} needs a time zone, like datetime.now(UTC)")
        return int(moment.timestamp() * 1000)
    if isinstance(moment, bool) or not isinstance(moment, int):
        raise InvalidRequest(
            f"{name} is {moment!r:.60}; it takes milliseconds since the epoch, or a datetime with "
            "a time zone"
        )
    if not -(1 << 63) <= moment < 1 << 63:
        raise InvalidRequest(f"{name} is {moment}; it takes 64 bits")
    return moment


def wait_given(name: str, wait_s: object) -> float:
    """Seconds to wait; None: for ever."""
    if wait_s is None:
        return math.inf
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not wait_s >= 0:
        raise InvalidRequest(f"{name} is {wait_s!r:.60}; it takes seconds, 0 and more, or None")
    return wait_s


def records_max(max_records: object) -> int:
    """Most records to be handed out at once."""
    if isinstance(max_records, bool) or not isinstance(max_records, int) or max_records < 1:
        raise InvalidRequest(f"max_records is {max_records!r:.60}; it takes 1 and more")
    return max_records


def first_offset(
    start: str | int, log_start_offset: int, high_watermark: int, name: str = "start"
) -> int:
    """The offset that `start` (`earliest`, `latest` or an offset) stands for."""
    if start == "earliest":
        return log_start_offset
    if start == "latest":
        return high_watermark
    if isinstance(start, int) and start >= 0:
        return start
    raise InvalidRequest(f"{name} is {start!r}; it takes 'earliest', 'latest' or an offset >= 0")


def delay_ms(delay: object) -> int:
    """A timedelta in whole milliseconds. Raises InvalidRequest for anything else, and for a
    negative one."""
    if not isinstance(delay, timedelta):
        raise InvalidRequest(f"delay is {delay!r:.60}; it takes a timedelta(seconds=...)")
    if delay < timedelta():
        raise InvalidRequest(f"delay is {delay}; it can't be negative")
    return delay // timedelta(milliseconds=1)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(each) for each in names)
