"""Goal: `df.write` and `df.writeStream` land each row once in a real node's topics."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import lakemq
from lakemq.spark_plugin.notebook.listener import LagListener
from tests.support.node.node import unique
from tests.support.spark.session import PYSPARK_WARNINGS, spark_fixture  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.partitions(2),
    pytest.mark.spark,
    pytest.mark.timeout(300),
    *(pytest.mark.filterwarnings(each) for each in PYSPARK_WARNINGS),
]


def until(holds, within_s=90.0):
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.1)


def numbers(client, topic):
    return sorted(int(record.value) for record in client.consume(topic))


def write(frame, node, **options):
    writer = frame.write.format("lakemq").option("bootstrap", node.native)
    writer.options(**options).mode("append").save()


def test_rows_become_records(spark, node, client, topic):
    other = unique("out")
    client.create_topic(other, partitions=3)
    frame = spark.sql(
        f"""SELECT * FROM VALUES
        ('{topic}', CAST(1 AS int), 'k1', CAST('a' AS binary), timestamp '2024-01-01 00:00:00',
         array(named_struct('key', 'unit', 'value', CAST('C' AS binary)))),
        ('{other}', 2, NULL, NULL, NULL, NULL),
        ('{topic}', 0, 'k3', CAST('c' AS binary), NULL, array())
        AS t(topic, partition, key, value, timestamp, headers)"""
    )
    write(frame, node)
    (first,) = client.consume(topic, partition=1)
    assert (first.key, first.value, first.timestamp_ms) == (b"k1", b"a", 1_704_067_200_000)
    assert first.headers == (("unit", b"C"),)
    (third,) = client.consume(topic, partition=0)
    assert (third.key, third.value, third.headers) == (b"k3", b"c", ())
    assert third.timestamp_ms > 1_704_067_200_000
    (second,) = client.consume(other)
    assert (second.partition if hasattr(second, "partition") else 2, second.value) == (2, None)
    owners = [each.name for each in client.staging.owners()]
    assert not [name for name in owners if name.startswith("spark-batch-")], "nothing is left"


def test_keys_choose_partitions_as_every_producer_does(spark, node, client, topic):
    frame = spark.range(500).selectExpr("CAST(id % 7 AS string) key", "CAST(id AS string) value")
    write(frame.repartition(3), node, topic=topic, compression="zstd")
    assert numbers(client, topic) == list(range(500))
    same = unique("out")
    client.create_topic(same, partitions=2)
    for key in range(7):
        client.send(same, b"", key=b"%d" % key)
    homes = {
        record.key: partition
        for partition in range(2)
        for record in client.consume(same, partition=partition)
    }
    for partition in range(2):
        for record in client.consume(topic, partition=partition):
            assert homes[record.key] == partition


def test_a_numbered_batch_lands_once(spark, node, client, topic):
    frame = spark.range(10).selectExpr("CAST(id AS string) value")
    for batch_id in ("3", "3", "4"):
        write(frame, node, topic=topic, sinkId="numbered", batchId=batch_id)
    assert numbers(client, topic) == sorted(2 * list(range(10)))
    with pytest.raises(Exception, match="sink numbered has batch 4, and this write is batch 2"):
        write(frame, node, topic=topic, sinkId="numbered", batchId="2")


def test_a_failed_write_leaves_nothing_to_see(spark, node, client, topic):
    frame = spark.range(1000, numPartitions=4).selectExpr(
        "CAST(IF(id = 990, raise_error('broken row'), id) AS string) value"
    )
    with pytest.raises(Exception, match="broken row"):
        write(frame, node, topic=topic)
    assert numbers(client, topic) == []


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ("id", {"topic": "t"}, "there is no column id in a record"),
        ("id AS value", {"topic": "t"}, "column value is bigint; the sink takes binary or string"),
        ("'x' AS value", {}, "say where to: option topic, or a column topic"),
        ("'x' AS key", {"topic": "t"}, "no column value"),
        (
            "'x' AS value",
            {"topic": "t", "sinkID2": "x"},
            "unknown option sinkid2; did you mean sinkId",
        ),
        ("'x' AS value", {"topic": "t", "batchId": "1"}, "batchId needs sinkId"),
        ("'x' AS value", {"topic": "t", "compression": "gz"}, "it takes none"),
    ],
)
def test_a_wrong_write_is_a_clear_error(spark, node, columns, options, problem):
    with pytest.raises(Exception, match=problem):
        write(spark.range(1).selectExpr(columns), node, **options)


def stream(spark, node, source, topic, checkpoint: Path, **options):
    frame = (
        spark.readStream.format("lakemq")
        .option("bootstrap", node.native)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "60")
        .load()
        .select("key", "value")
    )
    query = (
        frame.writeStream.format("lakemq")
        .option("bootstrap", node.native)
        .option("topic", topic)
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_a_stream_writes_each_row_once_and_a_lost_commit_of_spark_repeats_nothing(
    spark, node, client, topic, tmp_path: Path
):
    source = unique("out")
    client.create_topic(source, partitions=2)
    for partition in range(2):
        values = [b"%d" % (2 * n + partition) for n in range(50)]
        client.send_batch(source, lakemq.Columns(values), partition=partition)
    query = stream(spark, node, source, topic, tmp_path)
    assert numbers(client, topic) == list(range(100))
    (owner,) = [each for each in client.staging.owners() if each.name == query.id]
    assert owner.last_batch_id == 1
    # As after a crash between the broker's commit and Spark's: the last batch is run again.
    (tmp_path / "commits" / "1").unlink()
    (tmp_path / "commits" / ".1.crc").unlink(missing_ok=True)
    client.send_batch(source, lakemq.Columns([b"100", b"101"]), partition=0)
    stream(spark, node, source, topic, tmp_path)
    assert numbers(client, topic) == list(range(102))
    assert json.loads((tmp_path / "metadata").read_text())["id"] == query.id


def test_a_new_checkpoint_under_an_old_name_is_noticed(spark, node, client, topic, tmp_path: Path):
    source = unique("out")
    client.create_topic(source)
    client.send_batch(source, lakemq.Columns([b"%d" % n for n in range(120)]))
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        frame = (
            spark.readStream.format("lakemq")
            .option("bootstrap", node.native)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "60")
            .load()
            .select("value")
        )

        def run(name, **options):
            writer = frame.writeStream.format("lakemq").option("bootstrap", node.native)
            writer = writer.option("topic", topic).options(**options).queryName(name)
            writer.trigger(availableNow=True).start().awaitTermination()

        with pytest.raises(Exception, match="or name the sink with sinkId"):
            run("nameless")
        run("first", sinkId="s")
        assert numbers(client, topic) == list(range(120))
        with pytest.raises(Exception, match="its checkpoint is new|checkpoint is new or an older"):
            run("second", sinkId="s")
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert numbers(client, topic) == list(range(120))


def test_missing_topic_is_one_sentence_before_a_job_starts(spark, node, client):
    rows = spark.range(3).selectExpr("CAST(id AS string) value")
    name = unique("nowhere")
    tracker = spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup(None))
    with pytest.raises(Exception, match=f"there is no topic {name} at ") as raised:
        write(rows, node, topic=name)
    assert "Traceback" not in str(raised.value)
    with pytest.raises(Exception, match="unknown option tpoic; did you mean topic") as raised:
        write(rows, node, tpoic=name)
    assert "Traceback" not in str(raised.value)
    assert len(tracker.getJobIdsForGroup(None)) == before


def test_a_notebook_reads_streams_and_writes_topics(spark, node, client, tmp_path: Path):
    topics, listener = lakemq.spark(spark, node.native), LagListener()
    one, other = unique("one"), unique("other")
    rows = spark.range(20).selectExpr("CAST(id AS string) value")
    topics.write(rows, one, createTopic=2)
    assert len(client.describe_topic(one).partitions) == 2
    assert topics.read(one, includeHeaders=True).columns[-1] == "headers"
    client.create_topic(other)
    spark.streams.addListener(listener)
    try:
        found = topics.stream(one, startingOffsets="earliest")
        values = found.select("value")
        query = topics.write_stream(values, other, str(tmp_path / "checkpoint"))
        query.processAllAvailable()
        assert numbers(client, other) == list(range(20))
        until(lambda: list(listener.lag.values()) == [{(one, 0): 0, (one, 1): 0}])
        query.stop()
        until(lambda: listener.lag == {})
    finally:
        spark.streams.removeListener(listener)
