"""Tiering to an S3 server: moto's, in a thread of its own, on 127.0.0.1."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.types import Offset, TopicConfig, TopicInfo
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from lakemq.testing.storage import append, batch_of, open_alone, read_all
from tests.unit.journal.rig import until

pytest.importorskip("obstore")
moto_server = pytest.importorskip("moto.server")

TOPIC = TopicInfo(
    "t", "f" * 32, 1, TopicConfig(segment_max_bytes=4000, retention_bytes=None, retention_ms=None)
)


@pytest.fixture
def server() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    # What moto keeps is its process's, whatever server came before.
    urllib.request.urlopen(f"http://{host}:{port}/moto-api/reset", data=b"").close()
    yield f"http://{host}:{port}"
    server.stop()


def settings_for(endpoint: str) -> JournalSettings:
    options = {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": "test",
        "secret_access_key": "test",
    }
    return JournalSettings.model_validate(
        {
            "tiering_url": "s3://archive/lakemq",
            "tiering_options": options,
            "tiering_local_bytes": 0,
            "maintenance_interval_ms": 100,
            "free_min_bytes": 0,
            "tail_max_bytes": 0,
        }
    )


@pytest.mark.fault
async def test_segments_move_to_s3_and_are_read_from_there(server: str, tmp_path: Path) -> None:
    create_bucket(server)
    storage = JournalStorage(tmp_path, settings_for(server))
    await storage.start()
    log = await open_alone(storage, TOPIC, 0)
    values = [b"%d" % number * 100 for number in range(60)]
    for value in values:
        await append(log, batch_of(value))
    folder = tmp_path / "topics" / TOPIC.topic_id / "0"
    await until(lambda: len(list(folder.glob("*.log"))) == 1)
    assert log.status().segments > 3
    assert [record.value for record in await read_all(log)] == values
    await storage.stop()

    storage = JournalStorage(tmp_path, settings_for(server))
    await storage.start()
    log = await open_alone(storage, TOPIC, 0)
    assert [record.value for record in await read_all(log, 500)] == values
    shorter = TopicConfig(segment_max_bytes=4000, retention_bytes=8000, retention_ms=None)
    await storage.configure_topic(TopicInfo(TOPIC.name, TOPIC.topic_id, 1, shorter))
    await until(lambda: log.log_start_offset > 0 and not log.folder.manifest.garbage)
    left = keys(server)
    assert len(left) == log.status().segments  # the active one is not there, a manifest is
    await storage.delete_topic(TOPIC.topic_id)
    await until(lambda: keys(server) == [])
    await storage.stop()


@pytest.mark.fault
async def test_a_store_that_is_away_stops_only_its_readers(server: str, tmp_path: Path) -> None:
    create_bucket(server)
    storage = JournalStorage(tmp_path, settings_for(server))
    await storage.start()
    log = await open_alone(storage, TOPIC, 0)
    for number in range(40):
        await append(log, batch_of(b"%d" % number * 100))
    folder = tmp_path / "topics" / TOPIC.topic_id / "0"
    await until(lambda: len(list(folder.glob("*.log"))) == 1)
    await storage.stop()

    storage = JournalStorage(tmp_path, settings_for("http://127.0.0.1:1"))
    await storage.start()
    log = await open_alone(storage, TOPIC, 0)
    with pytest.raises(Unavailable, match="object store"):
        await log.fetch(Offset(0), bytes_max=1000)
    assert (await append(log, batch_of(b"goes on"))).base_offset == 40
    await storage.stop()


def client(endpoint: str) -> object:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def create_bucket(endpoint: str) -> None:
    client(endpoint).create_bucket(Bucket="archive")  # type: ignore[attr-defined]


def keys(endpoint: str) -> list[str]:
    found = client(endpoint).list_objects_v2(Bucket="archive")  # type: ignore[attr-defined]
    return [entry["Key"] for entry in found.get("Contents", [])]
