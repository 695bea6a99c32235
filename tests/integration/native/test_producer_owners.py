"""Goal: an account that may write to a topic can't fence another's producer there, nor write in its
place; the producer goes on, also after a restart of the broker.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import lakemq
from lakemq.broker_core.api.records.batch import ProducerStamp, RecordBatch, encode
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.net import calls as wire
from tests.support.node.node import NodeProcess, ports_kept
from tests.support.node.users import USERS_ONLY, add_user, login

CONFIG = (
    USERS_ONLY
    + """[[security.rules]]
who = ["user:victim", "user:mallory"]
operations = ["write", "describe", "read"]
resources = ["topic:*"]
"""
)


async def forged(client: lakemq.Client, producer_id: int, epoch: int, sequence: int) -> pb.Error:
    """How a batch under that id is refused."""
    batch = encode(Columns([b"forged"]), producer=ProducerStamp(producer_id, epoch, sequence))
    request = pb.ProduceRequest(request_id=1, topic="t", partition=0, acks=1, batch=batch)

    async def requests():  # type: ignore[no-untyped-def]  # of generated stubs
        yield request

    call = wire.native_stub(client.routes.channel("")).Produce(requests())
    async for answer in call:
        error: pb.Error = answer.error
        call.cancel()
        return error
    raise AssertionError


def test_nobody_is_fenced_by_another(tmp_path: Path) -> None:
    for name in ("root", "victim", "mallory"):
        add_user(tmp_path, name)
    node = NodeProcess(tmp_path, ports_kept("native") + CONFIG.format(folder=tmp_path))

    async def run() -> None:
        async with (
            lakemq.Client(node.native, **login("victim")) as victim,
            lakemq.Client(node.native, **login("mallory")) as mallory,
            await victim.producer() as producer,
        ):
            await producer.send("t", b"1")
            stored = [each async for each in mallory.fetch_batches("t", 0, 0)]
            (batch,) = stored
            assert isinstance(batch, RecordBatch)
            for epoch, sequence in ((65535, 0), (0, 1), (1, 0)):
                error = await forged(mallory, batch.header.producer_id, epoch, sequence)
                assert error.code == "NOT_AUTHORIZED"
            for guessed in range(2):  # of the broker's own
                error = await forged(mallory, guessed, 65535, 0)
                assert error.code == "NOT_AUTHORIZED"
            await producer.send("t", b"2")
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.start)
            await producer.send("t", b"3")
            assert [each.value async for each in victim.consume("t")] == [b"1", b"2", b"3"]

    with node:
        with lakemq.connect(node.native, **login("root")) as root:
            root.create_topic("t", partitions=1)
        asyncio.run(run())
