"""The devices of one partition: counted record by record, the least recent forgotten. Pure.

What is stored of them is described in `docs/formats/ledger.md`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from lakemq.broker_core.api.records.ledger_rule import LedgerRule
from lakemq.plugins.ledger.counting import NumberWindow, Outcome, nearest
from lakemq.plugins.ledger.reading import Reading

_VERSION: Final = 1
_COUNTS: Final = ("missing", "gaps", "late", "duplicates", "strays", "restarts")

_NUMBERS: Final = ("records", "first_ms", "last_ms", "offset")
_NUMBERS_OR_NONE: Final = ("newest_ms", "delay_ms", "delay_max_ms")


@dataclass(slots=True)
class Device:
    """What is known of one device in one partition. Times in ms since the epoch."""

    name: str
    window: NumberWindow = field(default_factory=NumberWindow)
    records: int = 0
    first_ms: int = 0
    """Timestamp of the first record."""
    last_ms: int = 0
    """Timestamp of the record that came last."""
    offset: int = -1
    """Of that record."""
    newest_ms: int | None = None
    """Time of the newest reading; of an interval's latest record, where intervals count."""
    delay_ms: int | None = None
    """What the last record took from the device's clock to its timestamp; None: no time was read.
    Below 0 where the device's clock is ahead."""
    delay_max_ms: int | None = None


@dataclass(slots=True)
class Skipped:
    """Records of a partition that no device has."""

    unread: int = 0
    """Without a device, or a number, that could be read."""
    deleted: int = 0
    """Deleted before they were counted."""
    evicted: int = 0
    """Devices that were forgotten because there were too many."""


class DeviceTable:
    """All devices of one partition. `position`: offset of the record to be counted next."""

    def __init__(self, rule: LedgerRule, rule_text: str, devices_max: int) -> None:
        self.rule = rule
        self.rule_text = rule_text
        self.devices: OrderedDict[str, Device] = OrderedDict()
        """The one whose record is the oldest comes first."""
        self.position = 0
        self.records = 0
        """All that were read."""
        self.skipped = Skipped()
        self.changed: dict[str, None] = {}
        """Devices that are not stored as they are; those that are not in `devices` were evicted."""
        self._devices_max = devices_max

    def take(self, reading: Reading) -> None:
        """Count the record at `position` or behind it."""
        self.position = reading.offset + 1
        self.records += 1
        rule, name = self.rule, reading.device
        time_ms = reading.time_ms if rule.time is not None else reading.timestamp_ms
        if name is None or (reading.number if rule.sequence is not None else time_ms) is None:
            self.skipped.unread += 1
            return
        device = self._device(name, reading.timestamp_ms)
        device.records += 1
        device.last_ms, device.offset = reading.timestamp_ms, reading.offset
        if reading.time_ms is not None:
            delay_ms = device.delay_ms = reading.timestamp_ms - reading.time_ms
            most = device.delay_max_ms
            device.delay_max_ms = delay_ms if most is None else max(most, delay_ms)
        if reading.number is not None:
            device.window.place(reading.number, first=rule.first, wrap=rule.wrap)
            if time_ms is not None:
                device.newest_ms = max(time_ms, device.newest_ms or 0)
        elif time_ms is not None:
            _place_time(device, time_ms, rule.interval_ms)
        self.changed[name] = None

    def _device(self, name: str, now_ms: int) -> Device:
        device = self.devices.get(name)
        if device is not None:
            self.devices.move_to_end(name)
            return device
        if len(self.devices) >= self._devices_max:
            evicted, _ = self.devices.popitem(last=False)
            self.changed[evicted] = None
            self.skipped.evicted += 1
        device = self.devices[name] = Device(name, first_ms=now_ms)
        return device

    def skip_to(self, offset: int) -> None:
        """Records below were deleted before they were counted."""
        self.skipped.deleted += offset - self.position
        self.position = offset

    def overdue(self, device: Device, now_ms: int) -> int | None:
        """Intervals since the newest record in which one should have come; None: none is set."""
        if not self.rule.interval_ms or device.newest_ms is None:
            return None
        return max(0, nearest(now_ms - device.newest_ms, self.rule.interval_ms) - 1)

    def last_number(self, device: Device) -> int | None:
        """The highest number as the device counts; None: intervals are counted."""
        highest = device.window.highest
        if self.rule.sequence is None or highest is None:
            return None
        return highest % self.rule.wrap if self.rule.wrap else highest

    # -- what is stored

    def stored_head(self, topic: str, partition: int) -> bytes:
        """Of the partition: how far it is counted."""
        head = {
            "v": _VERSION, "kind": "partition", "topic": topic, "partition": partition,
            "rule": self.rule_text, "offset": self.position - 1, "records": self.records,
            "unread": self.skipped.unread, "deleted": self.skipped.deleted,
            "evicted": self.skipped.evicted,
        }  # fmt: skip
        return json.dumps(head, separators=(",", ":")).encode()

    def stored(self, name: str, topic: str, partition: int) -> bytes | None:
        """A device; None: it was evicted."""
        device = self.devices.get(name)
        if device is None:
            return None
        window = device.window
        row = {
            "v": _VERSION, "kind": "device", "topic": topic, "partition": partition,
            "device": name, "offset": device.offset, "records": device.records,
            **{count: getattr(window, count) for count in _COUNTS},
            "last_number": self.last_number(device), "first_ms": device.first_ms,
            "last_ms": device.last_ms, "newest_ms": device.newest_ms,
            "delay_ms": device.delay_ms, "delay_max_ms": device.delay_max_ms,
            "window": [window.highest, window.lowest, f"{window.unseen:x}", window.stray],
        }  # fmt: skip
        return json.dumps(row, separators=(",", ":")).encode()

    def restore_head(self, value: bytes) -> None:
        """Inverse of `stored_head`. Raises ValueError."""
        head = _object(value)
        try:
            self.position, self.records = int(head["offset"]) + 1, int(head["records"])
            self.skipped = Skipped(*(int(head[name]) for name in ("unread", "deleted", "evicted")))
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no partition of a ledger: {error!r}") from None

    def restore(self, value: bytes) -> None:
        """Inverse of `stored`; devices are given in any order. Raises ValueError."""
        row = _object(value)
        try:
            highest, lowest, unseen, stray = row["window"]
            counts = {count: int(row[count]) for count in _COUNTS}
            window = NumberWindow(
                _number(highest), int(lowest), int(unseen, 16), _number(stray), **counts
            )
            name = str(row["device"])
            self.devices[name] = Device(
                name,
                window,
                *(int(row[each]) for each in _NUMBERS),
                *(_number(row[each]) for each in _NUMBERS_OR_NONE),
            )
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no device of a ledger: {error!r}") from None

    def restored(self) -> None:
        """All devices were given: bring them in the order of their last records, and forget what
        is too much by now."""
        oldest_first = sorted(self.devices.values(), key=lambda device: device.offset)
        self.devices = OrderedDict((device.name, device) for device in oldest_first)
        while len(self.devices) > self._devices_max:
            name, _ = self.devices.popitem(last=False)
            self.changed[name] = None
            self.skipped.evicted += 1


def stored_rule(value: bytes) -> str:
    """The rule of a stored partition. Raises ValueError."""
    return str(_object(value).get("rule"))


def _object(value: bytes) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(found, dict) or found.get("v") != _VERSION:
        raise ValueError(f"not of version {_VERSION}: {value[:60]!r}")
    return found


def _number(found: Any) -> int | None:
    """Raises TypeError, ValueError."""
    return None if found is None else int(found)


def _place_time(device: Device, time_ms: int, interval_ms: int) -> None:
    """Times are numbered by intervals, counted from the newest record so that slow drift of a
    device's clock adds up to nothing."""
    newest_ms, window = device.newest_ms, device.window
    if newest_ms is None or window.highest is None:
        number = 0
    else:
        number = window.highest + nearest(time_ms - newest_ms, interval_ms)
    if window.place(number) in (Outcome.NEXT, Outcome.RESTART):
        device.newest_ms = time_ms
