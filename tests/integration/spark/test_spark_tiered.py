"""Goal: sealed segments are read from the object store, and the rows are those of the broker.

A real node tiers to a folder, or to moto's S3, and gives up its local files at once. Readers run as
Spark's tasks do: all that they have is options.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lakemq
from lakemq.spark_plugin.errors import DataLossError, ObjectStoreError
from lakemq.spark_plugin.export.job.run import open_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.source import tiered as tiered_reading
from lakemq.spark_plugin.source.broker_reader import read_arrow
from lakemq.spark_plugin.source.options import COLUMNS, parse_options
from lakemq.spark_plugin.source.planning import OffsetRange
from lakemq.spark_plugin.source.tiered import Stores
from lakemq.spark_plugin.tiered_options import Tiered
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.spark.lake_tables import places, read_table, target_in
from tests.support.spark.session import PYSPARK_WARNINGS, spark_fixture  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    *(pytest.mark.filterwarnings(each) for each in PYSPARK_WARNINGS),
]
_CONFIG = (
    PORTS_FREE
    + """
[plugins.journal]
tiering_url = "{url}"
tiering_local_bytes = 0
maintenance_interval_ms = 100
index_interval_bytes = 1024
tail_max_bytes = 0
[plugins.journal.tiering_options]
{options}
"""
)
RECORDS = 1200


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[NodeProcess]:
    config = _CONFIG.format(url=store.as_uri(), options="")
    with NodeProcess(tmp_path_factory.mktemp("tiered"), config) as node:
        yield node


@pytest.fixture(scope="module")
def client(node: NodeProcess) -> Iterator[lakemq.SyncClient]:
    with lakemq.connect(node.native, timeout_s=10) as client:
        yield client


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Stores:
    """A process that has not read anything yet."""
    fresh = Stores()
    monkeypatch.setattr(tiered_reading, "_stores", [fresh])
    return fresh


def filled(node: NodeProcess, client: lakemq.SyncClient, topic: str, **config: str) -> OffsetRange:
    """A topic of many small segments; all but the last are in the store alone when it returns."""
    settings = {"segment_max_bytes": "4096", "retention_ms": "none", **config}
    topic_id = client.create_topic(topic, partitions=1, config=settings).topic_id
    seed = random.Random(7)
    sent = 0
    while sent < RECORDS:
        count = seed.randint(1, 20)
        numbers = range(sent, sent + count)
        values = [None if n % 50 == 7 else b"value %d" % n * 3 for n in numbers]
        keys = [b"key %d" % (n % 9) for n in numbers]
        codec = seed.choice([lakemq.Compression.NONE, lakemq.Compression.ZSTD])
        columns = lakemq.Columns(values, keys, None, [1_700_000_000_000 + n for n in numbers])
        client.send_batch(topic, columns, partition=0, compression=codec)
        sent += count
    client.send(topic, b"last", headers=(("unit", b"C"),), partition=0)
    wait(lambda: len(client.tiered_segments(topic, 0, 0, sent).segments) >= 5)
    # Copied comes first, given up later: until then the broker reads its own files.
    (folder,) = (each for each in node.data_dir.rglob("0") if topic_id in str(each))
    wait(lambda: len(list(folder.glob("*.log"))) == 1)
    return OffsetRange(topic, topic_id, 0, 0, sent + 1)


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def whole(node: NodeProcess, client: lakemq.SyncClient) -> OffsetRange:
    return filled(node, client, "tiered")


def rows(client: lakemq.SyncClient, wanted: OffsetRange, tiered: Tiered, **more) -> pa.Table:
    batches = read_arrow(client, wanted, columns=COLUMNS, tiered=tiered, batch_rows=64, **more)
    return pa.Table.from_batches(list(batches)) if wanted.start < wanted.end else pa.table({})


NEVER, AUTO, ALWAYS = Tiered("never"), Tiered(), Tiered("always")


def test_the_rows_are_the_broker_s_whatever_the_range(client, whole, here) -> None:
    told = client.tiered_segments(whole.topic, 0, 0, whole.end).segments
    edges = {0, 1, whole.end}
    for segment in told[:4]:
        edges |= {segment.base_offset, segment.base_offset + 3, segment.next_offset - 1}
    expected = rows(client, whole, NEVER)
    assert expected.num_rows == whole.end
    for start in edges:
        for end in edges:
            if start < end:
                got = rows(client, whole._replace(start=start, end=end), ALWAYS)
                assert got.equals(expected.slice(start, end - start)), (start, end)
    assert here.counters.segments > 20
    assert here.counters.fallbacks == 0


def test_only_what_is_wanted_is_read_of_an_object(client, whole) -> None:
    (segment,) = client.tiered_segments(whole.topic, 0, 0, 1).segments
    middle = (segment.base_offset + segment.next_offset) // 2
    (part,) = client.tiered_segments(whole.topic, 0, middle, middle + 1).segments
    assert 0 < part.read_position < part.read_end_position < part.size_bytes
    assert part.name == segment.name


def test_keys_are_chosen_alike(client, whole, here) -> None:
    chosen = {"keys": frozenset({b"key 4", b"key 5"})}
    expected = rows(client, whole, NEVER, **chosen)
    assert rows(client, whole, ALWAYS, **chosen).equals(expected)
    assert 0 < expected.num_rows < whole.end


def test_spark_and_the_export_read_from_the_store(spark, node, client, whole, store, tmp_path):
    """The broker could not serve these: it has given up its files, and the objects have moved."""
    moved = store.with_name("moved")
    store.rename(moved)
    try:
        reader = spark.read.format("lakemq").option("bootstrap", node.native)
        reader = reader.option("subscribe", whole.topic).option("tiered", "always")
        frame = reader.option("tieredStore.url", moved.as_uri()).load()
        found = sorted(row.offset for row in frame.select("offset").collect())
        assert found == list(range(whole.end))
        with pytest.raises(Exception, match=r"(?s)ObjectStoreError.*\.log"):
            reader.option("tieredStore.url", store.as_uri()).load().count()
        target = target_in(tmp_path, "parquet")
        access = parse_options(
            {
                "bootstrap": "b",
                "subscribe": "t",
                "tiered": "always",
                "tieredStore.url": moved.as_uri(),
            },
            streaming=False,
        ).access
        settings = ExportSettings(node.native, whole.topic, target, "e", access=access)
        exporter = open_exporter(spark, settings)
        try:
            exporter.start()
            assert sum(report.rows for report in iter(exporter.step, None)) == whole.end
        finally:
            exporter.close()
    finally:
        moved.rename(store)
    assert places(read_table(target)) == [(0, n) for n in range(whole.end)]


def test_a_store_that_is_not_here_is_named_once(client, whole, here, caplog, tmp_path) -> None:
    elsewhere = tmp_path.as_uri()
    with caplog.at_level(logging.WARNING, "lakemq.spark"):
        got = rows(client, whole, Tiered(url=elsewhere))
    assert got.equals(rows(client, whole, NEVER))
    assert here.counters.fallbacks >= 5
    (warning,) = caplog.messages
    assert "cannot be read" in warning and "through the broker" in warning
    with pytest.raises(ObjectStoreError, match=r"tiered-0, offsets 0 to \d+: .*\.log"):
        rows(client, whole, Tiered("always", elsewhere))


@pytest.mark.parametrize("damage", ["flip", "cut", "swap"])
def test_a_damaged_object_gives_no_wrong_row(node, client, here, store, caplog, damage) -> None:
    whole = filled(node, client, f"damaged-{damage}")
    expected = rows(client, whole, NEVER)
    first, second, *_ = client.tiered_segments(whole.topic, 0, 0, whole.end).segments
    path, other = store / first.name, store / second.name
    good = path.read_bytes()
    broken = {
        "flip": good[:-30] + bytes([good[-30] ^ 1]) + good[-29:],
        "cut": good[: len(good) // 2],
        "swap": other.read_bytes().ljust(len(good), b"\0"),
    }[damage]
    path.write_bytes(broken)
    with pytest.raises(ObjectStoreError, match=first.name):
        rows(client, whole, ALWAYS)
    if damage != "swap":  # the broker's only copy is the same, and says so
        with caplog.at_level(logging.WARNING, "lakemq.spark"), pytest.raises(lakemq.LakeMQError):
            rows(client, whole, AUTO, retry_timeout_s=0.1)
        assert first.name in caplog.text
    path.write_bytes(good)
    assert rows(client, whole, ALWAYS).equals(expected)


def test_what_retention_took_is_the_broker_s_to_answer(node, client, here, monkeypatch) -> None:
    whole = filled(node, client, "retained")
    before = client.tiered_segments(whole.topic, 0, 0, whole.end)
    client.admin.delete_records(whole.topic, {0: before.segments[1].next_offset + 2})
    wait(lambda: client.tiered_segments(whole.topic, 0, 0, whole.end).log_start_offset > 0)
    start = client.describe_topic(whole.topic).partitions[0].log_start_offset
    with pytest.raises(DataLossError):
        rows(client, whole, ALWAYS)
    lossy = {"fail_on_data_loss": False}
    got = rows(client, whole, ALWAYS, **lossy)
    assert got.equals(rows(client, whole, NEVER, **lossy))
    assert 0 < whole.end - start <= got.num_rows < whole.end

    answers = iter([before])  # a plan from before the records went
    real = client.tiered_segments
    monkeypatch.setattr(
        client, "tiered_segments", lambda *a, **k: next(answers, None) or real(*a, **k)
    )
    wait(lambda: not Path(before.segments[0].store_url[7:] + before.segments[0].name).exists())
    with pytest.raises(DataLossError):
        rows(client, whole, ALWAYS)


def test_s3_is_read_with_the_reader_s_own_credentials(spark, tmp_path, here, caplog) -> None:
    moto_server = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        secrets = {"region": "us-east-1", "access_key_id": "a", "secret_access_key": "b"}
        given = {"endpoint": f"http://{host}:{port}", **secrets}
        s3 = boto3.client(
            "s3",
            endpoint_url=given["endpoint"],
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",
        )
        s3.create_bucket(Bucket="archive")
        options = "\n".join(f'{name} = "{value}"' for name, value in given.items())
        config = _CONFIG.format(url="s3://archive/lake", options=options)
        with NodeProcess(tmp_path / "s3", config) as node:
            with lakemq.connect(node.native, timeout_s=10) as client:
                whole = filled(node, client, "bucket")
                told = client.tiered_segments(whole.topic, 0, 0, whole.end)
                assert told.segments[0].store_url == "s3://archive/lake/"
                own = Tiered("always", options=tuple(given.items()))
                assert rows(client, whole, own).equals(rows(client, whole, NEVER))
                assert here.counters.segments >= 5
                away = (*own.options[1:], ("endpoint", "http://127.0.0.1:1"))
                with caplog.at_level(logging.WARNING, "lakemq.spark"):
                    got = rows(client, whole, Tiered(options=away))
                assert got.num_rows == whole.end and len(caplog.messages) == 1
            frame = (
                spark.read.format("lakemq")
                .option("bootstrap", node.native)
                .option("subscribe", whole.topic)
                .option("tiered", "always")
                .options(**{f"tieredStore.{name}": value for name, value in given.items()})
                .load()
            )
            assert frame.count() == whole.end
    finally:
        server.stop()
