"""Goal: what the broker itself says in a record's headers comes from nobody else."""

from __future__ import annotations

import asyncio
import random

import pytest

from lakemq.broker_core.api.errors import CorruptBatch, InvalidRequest
from lakemq.broker_core.api.records.batch import encode, read_header
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import ANONYMOUS, Columns, Compression, TopicConfig, TopicInfo
from lakemq.broker_core.publishing.admission import Admission
from lakemq.broker_core.publishing.batch_check import check_columns

NAMES = frozenset({b"mqtt.delayed_id", b"mqtt.client"})
HARMLESS = [
    "mqtt.qos",
    "mqtt.client2",
    "mqtt.clien",
    "xmqtt.client",
    "MQTT.client",
    "mqtt.user.mqtt.client",
    "",
    "x",
]


def batch_of(*headers: bytes, codec: Compression = Compression.NONE) -> bytes:
    columns = Columns([b"v"] * len(headers), [b"k"] * len(headers), list(headers))
    return encode(columns, now_ms=1, compression=codec)


def check(batch: bytes) -> None:
    check_columns(read_header(batch), batch, NAMES)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize("count", [1, 16, 17, 500])
@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_reserved_header_is_refused_wherever_it_stands(
    count: int, name: bytes, codec: Compression
) -> None:
    dice = random.Random(count)
    for _ in range(5):
        rows = [
            tuple((dice.choice(HARMLESS), b"mqtt.client") for _ in range(dice.randrange(4)))
            for _ in range(count)
        ]
        check(batch_of(*map(encode_headers, rows), codec=codec))
        place = dice.randrange(count)
        at = dice.randrange(len(rows[place]) + 1)
        rows[place] = (*rows[place][:at], (name.decode(), None), *rows[place][at:])
        with pytest.raises(InvalidRequest, match=name.decode()) as caught:
            check(batch_of(*map(encode_headers, rows), codec=codec))
        assert not isinstance(caught.value, CorruptBatch)


def test_only_topics_that_ask_for_it_refuse_them() -> None:
    async def run() -> None:
        admission = Admission(lambda topic, batch: None, lambda: 1)
        batch = batch_of(encode_headers((("mqtt.client", b"forged"),)))
        bound, other = TopicInfo("b", "0" * 32, 1, TopicConfig()), TopicInfo("o", "1" * 32, 1)
        lift = admission.reserve("b", ["mqtt.client"])
        again = admission.reserve("b", ["mqtt.client", "mqtt.bridge"])
        await admission.check(other, batch, admission.header(other, batch), ANONYMOUS)
        for ends in (lift, again):
            with pytest.raises(InvalidRequest, match="mqtt.client"):
                await admission.check(bound, batch, admission.header(bound, batch), ANONYMOUS)
            ends()
        await admission.check(bound, batch, admission.header(bound, batch), ANONYMOUS)

    asyncio.run(run())
