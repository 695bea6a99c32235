"""Goal: `spark.read` and `spark.readStream` of a real node, as a user writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lakemq
from tests.support.node.node import unique
from tests.support.spark.session import PYSPARK_WARNINGS, spark_fixture  # noqa: F401 - a fixture
from tests.test_docs import ROOT, blocks

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    *(pytest.mark.filterwarnings(each) for each in PYSPARK_WARNINGS),
]


@pytest.fixture
def topic(client: lakemq.SyncClient) -> str:
    """A topic with 100 records in each of 2 partitions; values count up over both."""
    name = unique("topic")
    client.create_topic(name, partitions=2)
    send(client, name, 100)
    return name


def send(client: lakemq.SyncClient, topic: str, count: int, first: int = 0) -> None:
    for partition in range(2):
        values = [b"%d" % (2 * each + partition) for each in range(first, first + count)]
        times = [1_700_000_000_000 + each for each in range(first, first + count)]
        columns = lakemq.Columns(values, [b"key"] * count, None, times)
        client.send_batch(topic, columns, partition=partition)


def read(spark, node, topic, **options):
    reader = spark.read.format("lakemq").option("bootstrap", node.native)
    return reader.option("subscribe", topic).options(**options).load()


def test_a_topic_is_a_dataframe(spark, node, client, topic):
    client.send(topic, None, key=b"k", headers=(("unit", b"C"),), partition=1)
    frame = read(spark, node, topic, includeHeaders="true")
    assert frame.count() == 201
    rows = frame.where("partition = 1").orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(101))
    assert [bytes(row.value) for row in rows[:100]] == [b"%d" % (2 * n + 1) for n in range(100)]
    assert rows[3].timestamp.timestamp() == 1_700_000_000.003
    assert rows[100].value is None
    assert [(h.key, bytes(h.value)) for h in rows[100].headers] == [("unit", b"C")]


def test_ranges_columns_and_times(spark, node, topic):
    offsets = json.dumps({topic: {"0": 90, "1": -1}})
    frame = read(spark, node, topic, startingOffsets=offsets, columns="offset,value")
    assert [row.asDict() for row in frame.orderBy("offset").limit(1).collect()] == [
        {"offset": 90, "value": b"180"}
    ]
    assert frame.count() == 10
    assert read(spark, node, topic, startingTimestamp="1700000000095").count() == 10
    many = read(spark, node, topic, minPartitions="7", maxRecordsPerPartition="20")
    assert many.rdd.getNumPartitions() >= 10
    assert many.selectExpr("count(distinct value)").first()[0] == 200


def test_filters_reach_the_source(spark, node, client, topic):
    client.send(topic, b"9999", key=b"rare", partition=0)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, node, topic, pushdown="true")
        rows = frame.where("key = CAST('rare' AS binary)").collect()
        assert [bytes(row.value) for row in rows] == [b"9999"]
        kept = frame.where("partition = 1 AND offset >= 95 AND timestamp >= '2023-11-14'")
        assert kept.count() == 5
        assert kept.rdd.getNumPartitions() == 1, "partition 0 is not looked at"
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_wrong_option_is_a_clear_error(spark, node, topic):
    with pytest.raises(Exception, match="unknown option startoffset; did you mean startingOffsets"):
        read(spark, node, topic, startOffset="1").count()


def stream(spark, node, topic, checkpoint, seen, **options):
    """Run what is there through a streaming query; appends (batch, values) to `seen`."""
    frame = (
        spark.readStream.format("lakemq")
        .option("bootstrap", node.native)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
    )

    def collect(batch, number):
        seen.append((number, sorted(int(row.value) for row in batch.select("value").collect())))

    query = (
        frame.writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_a_stream_takes_what_is_there_in_bounded_batches_and_goes_on(
    spark, node, client, topic, tmp_path: Path
):
    seen: list[tuple[int, list[int]]] = []
    query = stream(spark, node, topic, tmp_path, seen, maxOffsetsPerTrigger="120")
    assert [len(values) for _, values in seen] == [120, 80]
    assert sorted(n for _, values in seen for n in values) == list(range(200))
    end = json.loads(query.lastProgress["sources"][0]["endOffset"])
    assert end["t"][topic] == {
        "id": client.describe_topic(topic).topic_id,
        "p": {"0": 100, "1": 100},
    }

    send(client, topic, 10, first=100)
    stream(spark, node, topic, tmp_path, seen)
    assert seen[2:] == [(2, list(range(200, 220)))]


def test_a_stream_notices_a_recreated_topic(spark, node, client, topic, tmp_path: Path):
    seen: list[tuple[int, list[int]]] = []
    stream(spark, node, topic, tmp_path, seen)
    client.delete_topic(topic)
    client.create_topic(topic, partitions=2)
    with lakemq.connect(node.native) as another:  # sequence numbers are of a topic's life
        send(another, topic, 5)
    with pytest.raises(Exception, match="was deleted and created again"):
        stream(spark, node, topic, tmp_path, seen)
    stream(spark, node, topic, tmp_path, seen, failOnDataLoss="false")
    assert seen[-1][1] == list(range(10))


def kafka_checkpoint(folder: Path, offsets: dict[str, dict[str, int]]) -> None:
    """What a query of Spark's Kafka source leaves behind after its first batch."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    batch = {"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000, "conf": {}}
    lines = ["v1", json.dumps(batch), json.dumps(offsets)]
    (folder / "offsets" / "0").write_text("\n".join(lines))
    (folder / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_the_guide_from_spark_kafka(spark, node, client, tmp_path: Path):
    """Its blocks, top to bottom."""
    rooms = unique("rooms")
    client.create_topic(f"{rooms}-orders", partitions=2)
    client.create_topic(f"{rooms}-large", partitions=1)
    for number, chairs in enumerate((2, 30, 11, 4)):
        value, headers = b'{"chairs": %d}' % chairs, (("n", b"%d" % number),)
        client.send(f"{rooms}-orders", value, key=b"k", headers=headers, partition=number % 2)
    client.schemas.register(f"{rooms}-value", "json-schema", '{"type": "object"}')
    client.create_topic(f"{rooms}-readings")
    to_bytes = client.schemas.serializer(f"{rooms}-value")
    client.send(f"{rooms}-readings", to_bytes({"celsius": 21.5}))
    kafka_checkpoint(tmp_path / "kafka", {f"{rooms}-orders": {"0": 1002, "1": 401}})

    script = "\n".join(blocks(ROOT / "docs" / "from-spark-kafka.md", "python"))
    for shown, real in (
        ("127.0.0.1:9700", node.native), ("/data/checkpoints", str(tmp_path)), ("rooms", rooms),
    ):  # fmt: skip
        assert shown in script
        script = script.replace(shown, real)
    names: dict[str, object] = {"__name__": "__main__"}  # so that Spark pickles its functions
    exec(compile(script, "from-spark-kafka.md", "exec"), names)

    large = [record.value for record in client.consume(f"{rooms}-large")]
    assert sorted(large) == [b"12 chairs", b'{"chairs": 11}', b'{"chairs": 30}']
    assert [row.celsius for row in names["decoded"].collect()] == [21.5]
    assert json.loads(names["starting"]) == {f"{rooms}-orders": {"0": 2, "1": 1}}

    client.create_topic(f"{rooms}-copy", partitions=2)
    whole = read(spark, node, f"{rooms}-orders", includeHeaders="true")
    names["copy"](whole, f"{rooms}-copy")
    of_copy = read(spark, node, f"{rooms}-copy", includeHeaders="true")
    assert sorted(of_copy.drop("topic").collect()) == sorted(whole.drop("topic").collect())
