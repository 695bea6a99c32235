"""Demo on real data: CSV -> readings and figures."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from examples.air_quality.readings import (
    Figures,
    Reading,
    figures,
    parse,
    payload,
    sensor_name,
    topic_name,
)

CSV = Path(__file__).parents[3] / "examples/air_quality/AirQualityUCI.csv"
HEADINGS = "Date;Time;CO(GT);AH;;"


@pytest.fixture(scope="module")
def readings() -> dict[str, list[Reading]]:
    with CSV.open() as lines:
        return parse(lines)


@pytest.mark.parametrize(
    ("heading", "name"),
    [("CO(GT)", "co_gt"), ("PT08.S1(CO)", "pt08_s1_co"), ("C6H6(GT)", "c6h6_gt"), ("T", "t")],
)
def test_headings_become_levels_of_topic_names(heading: str, name: str) -> None:
    assert sensor_name(heading) == name
    assert topic_name(name) == f"air/{name}"


def test_the_file_holds_thirteen_sensors_with_one_reading_an_hour(
    readings: dict[str, list[Reading]],
) -> None:
    assert len(readings) == 13
    assert sum(map(len, readings.values())) == 121_641
    for sensor, each in readings.items():
        assert len({reading.time for reading in each}) == len(each) == 9_357
        assert all(reading.sensor == sensor for reading in each)
        assert each == sorted(each, key=lambda reading: reading.time)


def test_first_and_last_line_are_read_as_they_stand(readings: dict[str, list[Reading]]) -> None:
    assert readings["co_gt"][0] == ("co_gt", "2004-03-10T18:00:00", Decimal("2.6"))
    assert readings["ah"][-1] == ("ah", "2005-04-04T14:00:00", Decimal("0.5028"))


def test_figures_of_the_file(readings: dict[str, list[Reading]]) -> None:
    """Checked against `awk` over the file: count, -200s, extremes and sum of column 13."""
    temperature = figures(readings["t"])

    assert temperature == Figures(9_357, 366, Decimal("-1.9"), Decimal("44.6"), Decimal("164695.6"))
    assert temperature.mean == Decimal("18.3178")
    assert figures(readings["nmhc_gt"]).missing == 8_443


def test_figures_are_exact_where_floats_are_not() -> None:
    tenths = [Reading("x", "", Decimal("0.1"))] * 10

    assert figures(tenths).total == 1
    assert figures(tenths).mean == Decimal("0.1")


def test_a_sensor_that_is_always_missing_has_no_figures() -> None:
    with pytest.raises(ValueError, match="no figures"):
        figures([Reading("x", "", Decimal("-200.0"))])


@pytest.mark.parametrize("value", ["2.6", "-200", "-200.0", "0.7578", "1E+3"])
def test_payloads_are_json_that_keeps_every_digit(value: str) -> None:
    sent = json.loads(payload(Reading("t", "2004-03-10T18:00:00", Decimal(value))), parse_float=str)

    assert sent["time"] == "2004-03-10T18:00:00"
    assert Decimal(sent["value"]) == Decimal(value)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("10/03/2004;18.00.00;2,6;x;;", "line 3: not all of"),
        ("10/13/2004;18.00.00;2,6;1;;", "line 3: time data"),
        ("10/03/2004", "line 3: 1 cells"),
        ("10/03/2004;18.00.00;2,6", "line 3: 3 cells; date, time and 2 sensors"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse([HEADINGS, "10/03/2004;17.00.00;2,6;0,1;;", line])


def test_empty_lines_are_no_readings() -> None:
    assert parse([HEADINGS, ";;;;;", ""]) == {"co_gt": [], "ah": []}
