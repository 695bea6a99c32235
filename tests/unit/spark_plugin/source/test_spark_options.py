"""Options of the Spark source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakemq.spark_plugin.errors import OffsetsError, OptionError
from lakemq.spark_plugin.sink.options import COMPRESSIONS, SINK_OPTIONS, parse_sink_options
from lakemq.spark_plugin.source import options as source_options
from lakemq.spark_plugin.source.offsets import cursor_from_json
from lakemq.spark_plugin.source.options import (
    Boundary,
    parse_duration_s,
    parse_options,
    parse_size,
)

GIVEN = {"bootstrap": "b:1", "subscribe": "t"}


def parse(streaming=False, **options):
    return parse_options({**GIVEN, **options}, streaming=streaming)


def test_defaults_are_kafkas():
    options = parse()
    assert options.topics == ("t",)
    assert options.fail_on_data_loss is True
    assert options.columns == ("topic", "partition", "offset", "timestamp", "key", "value")
    assert options.trigger_delay_max_s == 900
    assert options.starting == options.ending == Boundary()


def test_names_are_taken_in_any_case():
    assert parse(MAXOFFSETSPERTRIGGER="5").trigger_rows_max == 5
    assert parse(failondataloss="FALSE").fail_on_data_loss is False


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("startOffsets", "startingOffsets"),
        ("maxoffsetpertrigger", "maxOffsetsPerTrigger"),
        ("subscription", "subscribe"),
        ("failOnDataLos", "failOnDataLoss"),
    ],
)
def test_an_unknown_option_names_the_nearest(name, nearest):
    with pytest.raises(OptionError, match=f"unknown option {name}; did you mean {nearest}"):
        parse(**{name: "1"})


def test_an_option_like_no_other_names_none():
    with pytest.raises(OptionError, match="unknown option zzz$"):
        parse(zzz="1")


@pytest.mark.parametrize("given", [{}, {"subscribe": "a", "assign": '{"a":[0]}'}])
def test_exactly_one_way_to_name_topics(given):
    with pytest.raises(OptionError, match="exactly one of subscribe, subscribePattern and assign"):
        parse_options({"bootstrap": "b:1", **given}, streaming=False)


def test_topics_are_split_and_kept_in_order():
    assert parse(subscribe=" b, a ,b").topics == ("b", "a")
    with pytest.raises(OptionError, match="an empty name"):
        parse(subscribe="a,,b")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"minPartitions": "0"}, "minPartitions is '0'"),
        ({"maxOffsetsPerTrigger": "x"}, "maxOffsetsPerTrigger is 'x'"),
        ({"failOnDataLoss": "maybe"}, "takes true or false"),
        ({"maxBytesPerTrigger": "1XB"}, "maxBytesPerTrigger is '1XB'"),
        ({"maxTriggerDelay": "5"}, "maxTriggerDelay is '5'"),
        ({"columns": "offset,valu"}, "no column valu; did you mean value"),
        ({"startingOffsets": "begin"}, "takes earliest, latest or JSON"),
        ({"startingOffsets": "latest"}, "nothing to read"),
        ({"endingOffsets": "earliest"}, "nothing to read"),
        ({"startingTimestamp": "yesterday"}, "takes ms since the epoch"),
        ({"startingTimestamp": "1", "startingOffsets": "earliest"}, "give one of"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "takes error or latest"),
    ],
)
def test_wrong_values_are_named(options, problem):
    with pytest.raises(OptionError, match=problem):
        parse(**options)


def test_a_pattern_that_is_none_is_named():
    with pytest.raises(OptionError, match="no regular expression"):
        parse_options({"bootstrap": "b", "subscribePattern": "["}, streaming=False)


@pytest.mark.parametrize(
    "options",
    [{"endingOffsets": "latest"}, {"endingTimestamp": "1"}],
)
def test_batch_options_are_refused_when_streaming(options):
    parse(**options)
    with pytest.raises(OptionError):
        parse(streaming=True, **options)


def test_limits_that_contradict_each_other_are_refused():
    with pytest.raises(OptionError, match="above maxOffsetsPerTrigger"):
        parse(streaming=True, minOffsetsPerTrigger="9", maxOffsetsPerTrigger="8")


def test_json_offsets_take_the_marks_of_kafka():
    boundary = parse(startingOffsets='{"t":{"0":23,"1":-1,"2":-2}}').starting
    assert boundary.offsets == {"t": {0: 23, 1: -1, 2: -2}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"t":{"0":-3}}', "offset -3 of t-0 is negative"),
        ('{"t":{"x":3}}', "takes a partition number"),
        ('{"t":{"0":true}}', "takes a partition number"),
        ('{"t":5}', "takes an object"),
        ("{}", "takes a JSON object"),
        ('{"t":', "is not valid JSON"),
    ],
)
def test_offsets_that_are_wrong_are_explained(text, problem):
    with pytest.raises(OffsetsError, match=problem):
        parse(startingOffsets=text)


def test_headers_are_a_column_when_asked_for():
    assert parse(includeHeaders="true").columns[-1] == "headers"
    assert parse(columns="value,offset").columns == ("value", "offset")
    assert parse(columns="value", includeHeaders="true").columns == ("value", "headers")


def test_sizes_and_durations():
    assert parse_size("x", "128MB") == 128 << 20
    assert parse_size("x", "1.5k") == 1536
    assert parse_size("x", "77") == 77
    assert parse_duration_s("x", "500ms") == 0.5
    assert parse_duration_s("x", "15m") == 900
    for text in ("", "-5s", "0s", "1y", "s"):
        with pytest.raises(OptionError):
            parse_duration_s("x", text)
    for text in ("", "MB", "-1", "0", "5 eggs", "0.1"):
        with pytest.raises(OptionError):
            parse_size("x", text)


def test_a_duration_that_is_too_short_says_what_is_the_least():
    with pytest.raises(OptionError, match=r"--retention is '0s'; the least is 1ms"):
        parse_duration_s("--retention", "0s")
    with pytest.raises(OptionError, match="takes a duration such as 30s"):
        parse_duration_s("--retention", "soon")
    assert parse_duration_s("--retention", "1ms") == 0.001


def test_bootstrap_has_the_name_of_sparks_kafka_connector_too():
    given = {"kafka.bootstrap.servers": "a:1, b:2", "subscribe": "t"}
    assert parse_options(given, streaming=False).bootstrap == "a:1,b:2"
    sink = parse_sink_options({"Kafka.Bootstrap.Servers": "a:1"}, streaming=False)
    assert sink.bootstrap == "a:1"
    both = {**given, "bootstrap": "a:1"}
    with pytest.raises(OptionError, match="give one of bootstrap and kafka.bootstrap.servers"):
        parse_options(both, streaming=False)
    with pytest.raises(OptionError, match="option bootstrap .* is missing"):
        parse_options({"subscribe": "t", "bootstrap": " "}, streaming=False)


@pytest.mark.parametrize(
    "text",
    ["0", "x", "-1", "7000000", "9" * 5000],
    ids=["zero", "text", "negative", "large", "endless"],
)
def test_create_topic_takes_a_number_of_partitions(text):
    given = {"bootstrap": "b:1", "topic": "t"}
    assert parse_sink_options({**given, "createTopic": "3"}, streaming=False).create_partitions == 3
    with pytest.raises(OptionError, match="takes a number of partitions"):
        parse_sink_options({**given, "createTopic": text}, streaming=False)
    with pytest.raises(OptionError, match="createTopic needs option topic"):
        parse_sink_options({"bootstrap": "b:1", "createTopic": "3"}, streaming=False)


GUIDE = Path(__file__).parents[4] / "docs" / "from-spark-kafka.md"


def options_in(section: str) -> list[tuple[set[str], set[str]]]:
    """Rows of the guide's first table there: options of Spark-Kafka, and ours for them."""
    text = GUIDE.read_text().partition(f"## {section}\n\n")[2].partition("\n\n")[0]
    rows = []
    for line in text.splitlines()[2:]:
        theirs, ours = (set(re.findall(r"`([\w.*]+)`", cell)) for cell in line.split("|")[1:3])
        rows.append((theirs, theirs if line.split("|")[2].strip() == "the same" else ours))
    assert len(rows) > 5
    return rows


@pytest.mark.parametrize(
    ("section", "taken"),
    [
        ("Options of the source", source_options._OPTIONS),
        ("Options of the sink", (*SINK_OPTIONS, *COMPRESSIONS)),
    ],
    ids=["source", "sink"],
)
def test_the_guide_for_users_of_spark_kafka_names_options_that_are_there(section, taken):
    for theirs, ours in options_in(section):
        assert ours <= set(taken)
        assert not (theirs - ours) & set(taken)


def test_a_checkpoint_of_another_source_says_so():
    with pytest.raises(
        OffsetsError, match=r'such as Kafka: its offsets are \{"t": \{"0": 23\}\}\.'
    ):
        cursor_from_json({"t": {"0": 23}})
    with pytest.raises(OffsetsError) as raised:
        cursor_from_json({f"topic-{number}": {"0": 1} for number in range(1000)})
    assert len(str(raised.value)) < 500
