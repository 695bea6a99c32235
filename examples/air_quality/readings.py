"""CSV text -> readings and figures. Pure; decimals throughout, so that figures compare exactly."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Final, NamedTuple

MISSING: Final = Decimal(-200)
"""What the device sends when a sensor gave nothing."""
TOPIC: Final = "air"
_FIRST_SENSOR_COLUMN: Final = 2
_MEAN_STEP: Final = Decimal("0.0001")


class Reading(NamedTuple):
    """One sensor's value at one hour."""

    sensor: str
    time: str
    """Local time of the device, ISO 8601."""
    value: Decimal


class Figures(NamedTuple):
    """What is asked of the CSV and of the table: must be equal, field by field."""

    readings: int
    missing: int
    minimum: Decimal
    maximum: Decimal
    total: Decimal
    """Sum of what is not missing; exact, so the mean is too."""

    @property
    def mean(self) -> Decimal:
        present = self.readings - self.missing
        return (self.total / present).quantize(_MEAN_STEP, ROUND_HALF_UP)


def sensor_name(heading: str) -> str:
    """A CSV heading as a level of an MQTT topic name: `PT08.S1(CO)` -> `pt08_s1_co`."""
    return re.sub(r"[^a-z0-9]+", "_", heading.lower()).strip("_")


def parse(lines: Iterable[str]) -> dict[str, list[Reading]]:
    """Readings by sensor, in order of time. ValueError names the line that makes no sense."""
    rows = csv.reader(lines, delimiter=";")
    headings = next(rows, [])
    sensors = [sensor_name(each) for each in headings[_FIRST_SENSOR_COLUMN:] if each]
    found: dict[str, list[Reading]] = {sensor: [] for sensor in sensors}
    for number, row in enumerate(rows, start=2):
        if not any(row):
            continue
        try:
            time, values = _parse_row(row, len(sensors))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        for sensor, value in zip(sensors, values, strict=True):
            found[sensor].append(Reading(sensor, time, value))
    return found


def _parse_row(row: list[str], sensors: int) -> tuple[str, list[Decimal]]:
    if len(row) < _FIRST_SENSOR_COLUMN + sensors:
        raise ValueError(f"{len(row)} cells; date, time and {sensors} sensors are expected")
    time = datetime.strptime(f"{row[0]} {row[1]}", "%d/%m/%Y %H.%M.%S").isoformat()
    cells = row[_FIRST_SENSOR_COLUMN : _FIRST_SENSOR_COLUMN + sensors]
    try:
        return time, [Decimal(cell.replace(",", ".")) for cell in cells]
    except InvalidOperation:
        raise ValueError(f"not all of {cells} are decimal numbers") from None


def topic_name(sensor: str) -> str:
    """The MQTT topic name that a sensor publishes to."""
    return f"{TOPIC}/{sensor}"


def payload(reading: Reading) -> bytes:
    """What the device sends. Written by hand: `json` has no decimals."""
    return f'{{"time":"{reading.time}","value":{reading.value:f}}}'.encode()


def figures(readings: Iterable[Reading]) -> Figures:
    """Figures of one sensor. ValueError when all of its readings are missing."""
    values = [reading.value for reading in readings]
    present = [value for value in values if value != MISSING]
    if not present:
        raise ValueError("a sensor without any reading has no figures")
    return Figures(
        readings=len(values),
        missing=len(values) - len(present),
        minimum=min(present),
        maximum=max(present),
        total=sum(present, Decimal(0)),
    )
