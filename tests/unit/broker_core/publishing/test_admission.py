"""Goal: what a client appends is judged by the topic's own settings."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence

import pytest

from lakemq.broker_core.api.errors import InvalidTimestamp, SchemaMismatch
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.schemas.json_validation import TooManySteps
from lakemq.broker_core.api.types import Columns, TopicConfig, TopicInfo
from lakemq.broker_core.publishing.admission import Admission, Mismatch

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def topic(**config: object) -> TopicInfo:
    return TopicInfo("t", "0" * 32, 1, TopicConfig(**config))  # type: ignore[arg-type]


class Clock:
    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def admission(clock: Clock) -> Admission:
    return Admission(lambda topic, batch, steps_max: None, clock)


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        ({"retention_by": "record", "retention_ms": HOUR_MS}, True),
        ({"retention_by": "record", "retention_ms": 3 * HOUR_MS}, False),
        ({"retention_by": "record", "retention_ms": None}, False),
        ({"retention_by": "record", "retention_ms": HOUR_MS, "cleanup": "compact"}, False),
        ({"retention_ms": HOUR_MS}, False),
    ],
)
def test_records_that_retention_is_to_delete_are_warned_of(
    admission: Admission,
    config: dict[str, object],
    warned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    batch = encode(Columns([b"old"], None, None, [NOW_MS - 2 * HOUR_MS]))
    with caplog.at_level(logging.WARNING):
        admission.header(topic(**config), batch)
    told = ["topic t: records of 7200000 ms ago" in each.message for each in caplog.records]
    assert told == [True] * warned


def test_old_records_are_warned_of_now_and_then(
    admission: Admission, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    info = topic(retention_by="record", retention_ms=HOUR_MS)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            admission.check_times(info, [0, NOW_MS])
        assert len(caplog.records) == 1
        clock.now_ms += HOUR_MS
        admission.check_times(info, [0, NOW_MS])
    assert len(caplog.records) == 2


def test_times_are_checked_by_the_brokers_clock(admission: Admission, clock: Clock) -> None:
    batch = encode(Columns([b"v"], None, None, [NOW_MS + 2000]))
    ahead = topic(timestamp_ahead_max_ms=1000)
    with pytest.raises(InvalidTimestamp, match="2000 ms ahead of the broker's clock"):
        admission.header(ahead, batch)
    clock.now_ms += 1000
    admission.header(ahead, batch)


async def test_values_that_take_long_are_checked_in_a_thread_and_keep_their_order(
    admission: Admission,
) -> None:
    loop = asyncio.get_running_loop()
    order: list[str] = []
    threads: list[bool] = []

    def check(
        info: TopicInfo, values: Sequence[bytes | None], steps_max: int | None
    ) -> Iterator[Mismatch]:
        threads.append(threading.current_thread() is not threading.main_thread())
        if steps_max is not None and values == [b"steps"]:
            raise TooManySteps("more than that")
        if values[0] == b"wrong":
            yield 0, SchemaMismatch("wrong")

    def publish(name: str, values: list[bytes | None]) -> asyncio.Future[None]:
        def then(refused: dict[int, SchemaMismatch]) -> asyncio.Future[None]:
            order.append(name + ", but one" * len(refused))
            done: asyncio.Future[None] = loop.create_future()
            done.set_result(None)
            return done

        return admission.publish(topic(), values, check, then)

    futures = [
        publish("many", [b"v"] * 100),
        publish("large", [bytes(10_000)]),
        publish("steps", [b"steps"]),
        publish("small", [b"v"]),
    ]
    assert order == []
    await asyncio.gather(*futures)
    assert order == ["many", "large", "steps", "small"]
    assert threads.count(False) == 2, "the small one, and the first try of the one of many steps"
    await publish("alone", [b"v"])
    await publish("few", [b"wrong", b"v"])
    await publish("again many", [b"wrong"] + [b"v"] * 100)
    assert order[-3:] == ["alone", "few, but one", "again many, but one"]
