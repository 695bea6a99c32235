"""Goal: names and configs that would hurt later are refused at the door, by name."""

from dataclasses import replace

import pytest

from lakemq.broker_core.api.errors import InvalidRequest, InvalidTopicName
from lakemq.broker_core.api.types import TopicConfig
from lakemq.broker_core.topic_names import (
    check_config,
    check_topic_name,
    config_from_catalog,
    config_to_catalog,
)


@pytest.mark.parametrize("name", ["a", "air", "a.b-c_d", "A1", "x" * 249, "_internal"])
def test_good_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [("", "1 to 249"), ("x" * 250, "1 to 249"), ("a/b", "'/'"), ("..", "not a topic name"),
     (".", "not a topic name"), ("a b", "' '"), ("ü", "'ü'"), ("a\n", r"'\\n'"), ("a\0", r"x00")],
)  # fmt: skip
def test_bad_names_say_why(name: str, why: str) -> None:
    with pytest.raises(InvalidTopicName, match=why):
        check_topic_name(name)


def test_config_round_trip_and_new_settings_of_later_versions() -> None:
    config = replace(TopicConfig(), retention_ms=None, compression="zstd")
    stored = config_to_catalog(config)
    assert config_from_catalog({**stored, "of_the_future": 1}, TopicConfig()) == config
    assert config_from_catalog({}, config) == config


def test_the_catalog_keeps_the_keys_of_the_first_version() -> None:
    kept = {
        "segment_bytes_max",  # stored name
        "segment_age_ms_max",  # stored name
        "batch_bytes_max",  # stored name
        "timestamp_ahead_ms_max",  # stored name
    }
    assert kept <= config_to_catalog(TopicConfig()).keys()
    values = dict.fromkeys(sorted(kept), 123_456)
    read = config_from_catalog(values, TopicConfig())
    assert (read.segment_max_bytes, read.segment_age_max_ms) == (123_456, 123_456)
    assert (read.batch_max_bytes, read.timestamp_ahead_max_ms) == (123_456, 123_456)


@pytest.mark.parametrize(
    "change",
    [
        {"cleanup": "x"},
        {"compression": "gzip"},
        {"batch_max_bytes": 1},
        {"segment_max_bytes": 1},
        {"segment_age_max_ms": 1},
    ],
)
def test_bad_configs_name_the_setting(change: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(change))):
        check_config(replace(TopicConfig(), **change))  # type: ignore[arg-type]  # wrong on purpose
