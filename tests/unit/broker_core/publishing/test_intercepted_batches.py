"""Goal: what an interceptor does to a whole batch is stored under its producer's sequence, in its
codec and in order, and batches that no interceptor takes are never opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lakemq.broker_core.api.errors import (
    BatchTooLarge,
    CorruptBatch,
    InterceptorFailed,
    InvalidRequest,
    InvalidTimestamp,
    LakeMQError,
    NotAuthorized,
    NotLeader,
    SchemaMismatch,
    Unavailable,
)
from lakemq.broker_core.api.records.batch import (
    APPEND_TIME,
    BatchHeader,
    ProducerStamp,
    RecordBatch,
    encode,
)
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import Columns, Compression, Principal, TopicConfig, TopicInfo
from lakemq.broker_core.configuration.settings import InterceptorSettings
from lakemq.broker_core.publishing import admission as module
from lakemq.broker_core.publishing.admission import Admission
from lakemq.broker_core.publishing.interception import Interception

ANN = Principal("ann")
STAMP = ProducerStamp(7, 3, 41)
HEADS = encode_headers([("unit", b"C")])
FULL = Columns([b"1", None, b"3"], [b"k", None, b""], [HEADS, b"", b""], [5, 9, 1 << 40])


class Hook:
    """An interceptor of topics whose name begins with `t`, or all that `takes` says."""

    def __init__(self, change: Callable[[Columns], Any]) -> None:
        self.change = change
        self.takes: Callable[[str], bool] = lambda topic: topic.startswith("t")
        self.asked: list[str] = []
        self.seen: list[tuple[str, Columns, Principal]] = []

    def takes_batches(self, topic: str) -> bool:
        self.asked.append(topic)
        return self.takes(topic)

    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        self.seen.append((topic, columns, principal))
        found: Columns = self.change(columns)
        return found


class Single:
    """An interceptor that takes no batches."""

    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        raise AssertionError("it never asked for batches")


def upper(columns: Columns) -> Columns:
    return columns._replace(values=[value and value.upper() for value in columns.values])


def topic(name: str = "t", **config: Any) -> TopicInfo:
    return TopicInfo(name, "0" * 32, 1, TopicConfig(**config))


def raising(error: BaseException) -> Callable[[Columns], Columns]:
    def change(columns: Columns) -> Columns:
        raise error

    return change


class Bench:
    """Admission with interceptors; keeps what would be stored, in order."""

    def __init__(self, *hooks: Any, settings: InterceptorSettings | None = None) -> None:
        chain = [(f"p{number}", hook) for number, hook in enumerate(hooks)]
        self.now = 1.0
        self.interception = Interception(chain, lambda: self.now, settings)
        self.admission = Admission(self._check, lambda: 1 << 41, interception=self.interception)
        self.stored: list[tuple[bytes, BatchHeader]] = []
        self.mismatch = b""

    def _check(self, topic: TopicInfo, batch: bytes, steps_max: int | None) -> None:
        if self.mismatch and self.mismatch in RecordBatch(batch).values():
            raise SchemaMismatch("it does not fit")

    def admit(self, batch: bytes, into: TopicInfo, key: str = "k") -> asyncio.Future[int]:
        def store(batch: bytes, header: BatchHeader) -> asyncio.Future[int]:
            self.stored.append((batch, header))
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            done.set_result(len(self.stored))
            return done

        header = self.admission.header(into, batch)
        return self.admission.admit(key, into, batch, header, ANN, store)


@pytest.mark.parametrize("codec", list(Compression), ids=lambda codec: codec.name)
async def test_a_changed_batch_keeps_producer_sequence_codec_and_count(codec: Compression) -> None:
    hook = Hook(lambda columns: columns._replace(values=[b"x", None, b"y"], keys=None))
    bench = Bench(hook)
    await bench.admit(encode(FULL, compression=codec, producer=STAMP), topic())
    ((data, header),) = bench.stored
    found = RecordBatch(data)
    assert found.header == header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == STAMP
    assert (header.compression, header.record_count) == (codec, 3)
    assert found.values() == [b"x", None, b"y"] and found.keys() == [None] * 3
    assert found.encoded_headers() == FULL.headers
    assert found.timestamps_ms() == FULL.timestamps_ms
    assert hook.seen == [("t", FULL, ANN)]


async def test_absent_columns_are_none_and_append_time_stays_so() -> None:
    hook = Hook(upper)
    bench = Bench(hook)
    await bench.admit(encode(Columns([b"a"]), now_ms=77), topic())
    assert hook.seen[0][1] == Columns([b"a"], None, None, [77])
    assert bench.stored[0][1].attributes & APPEND_TIME
    hook.change = lambda columns: columns._replace(timestamps_ms=[78])
    await bench.admit(encode(Columns([b"a"]), now_ms=77), topic())
    assert not bench.stored[1][1].attributes & APPEND_TIME
    assert RecordBatch(bench.stored[1][0]).timestamps_ms() == [78]


async def test_a_batch_that_is_left_as_it_was_is_stored_byte_for_byte() -> None:
    bench = Bench(Hook(lambda columns: columns))
    batch = encode(FULL, compression=Compression.ZSTD, producer=STAMP)
    await bench.admit(batch, topic())
    assert bench.stored[0][0] is batch


async def test_batches_that_no_one_takes_are_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(batch: bytes) -> Columns:
        raise AssertionError("opened")

    monkeypatch.setattr(module, "columns_of", never)
    hook = Hook(upper)
    for bench, into in (
        (Bench(), topic()),
        (Bench(Single()), topic()),
        (Bench(hook), topic("other")),
        (Bench(hook), topic("__mqtt_state")),
    ):
        batch = encode(Columns([b"a"]))
        for _ in range(2):
            await bench.admit(batch, into)
        assert [each for each, _ in bench.stored] == [batch, batch]
    assert not Bench(Single()).interception.takes_batches
    assert hook.asked == ["other"]  # once for each topic, and never for internal ones


async def test_the_chain_goes_on_with_what_the_first_gave() -> None:
    second = Hook(lambda columns: columns._replace(keys=[b"second"]))
    bench = Bench(Hook(upper), Single(), second)
    await bench.admit(encode(Columns([b"a"])), topic())
    assert second.seen[0][1].values == [b"A"]
    found = RecordBatch(bench.stored[0][0])
    assert (found.values(), found.keys()) == ([b"A"], [b"second"])


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (raising(InvalidRequest("no unit")), InvalidRequest, "^no unit$"),
        (raising(NotAuthorized("not you")), NotAuthorized, "^not you$"),
        (raising(Unavailable("busy")), Unavailable, "^busy$"),
        (raising(NotLeader("it lies")), InvalidRequest, "^it lies$"),
        (raising(KeyError("unit")), InterceptorFailed, "plugin p0: its interceptor failed: KeyEr"),
        (raising(SystemExit(1)), InterceptorFailed, "SystemExit: 1"),
        (lambda columns: columns._replace(values=[b"a"]), InterceptorFailed, "1 values for 3 rec"),
        (lambda columns: Columns([]), InterceptorFailed, "0 values for 3 records"),
        (lambda columns: columns._replace(values=[b"x" * 2000] * 3), BatchTooLarge, "takes 4096"),
        (
            lambda columns: columns._replace(timestamps_ms=[-1] * 3),
            InvalidTimestamp,
            "before 1970",
        ),
    ],
)
async def test_a_refusal_is_of_the_whole_batch(
    change: Callable[[Columns], Any], error: type[LakeMQError], text: str
) -> None:
    hook = Hook(change)
    bench = Bench(hook)
    with pytest.raises(error, match=text):
        await bench.admit(encode(FULL), topic(batch_max_bytes=4096))
    assert not bench.stored
    assert len(hook.seen) == 1


async def test_its_inside_is_right_before_it_is_shown() -> None:
    hook = Hook(upper)
    bench = Bench(hook)
    lift = bench.admission.reserve("t", ["unit"])
    with pytest.raises(InvalidRequest, match="record header unit is the broker's own"):
        await bench.admit(encode(FULL), topic())
    lift()
    with pytest.raises(CorruptBatch):
        await bench.admit(_with_short_columns(), topic())
    assert not hook.seen


def _with_short_columns() -> bytes:
    """A batch whose lengths do not fill its body, under right checksums."""
    import google_crc32c

    from lakemq.broker_core.api.records.batch import HEADER_BYTES, pack_header, read_header

    whole = encode(Columns([b"abc"]))
    header, body = read_header(whole), whole[HEADER_BYTES:] + b"!"
    return (
        pack_header(
            header._replace(
                body_bytes=len(body),
                raw_body_bytes=len(body),
                body_crc32c=google_crc32c.value(body),
            )
        )
        + body
    )


async def test_the_schema_is_asked_about_what_is_stored() -> None:
    bench = Bench(Hook(upper))
    bench.mismatch = b"BAD"
    for count in (1, 5000):
        with pytest.raises(SchemaMismatch):
            await bench.admit(encode(Columns([b"bad"] * count)), topic(schema="s"))
    bench.mismatch = b"bad"
    for count in (1, 5000):
        await bench.admit(encode(Columns([b"bad"] * count)), topic(schema="s"))
    assert len(bench.stored) == 2


async def test_large_and_small_batches_stay_in_order() -> None:
    """Large ones are opened and made again in threads, small ones on the event loop."""
    bench = Bench(Hook(upper))
    sizes = [20_000, 1, 5_000, 1, 1, 30_000, 2]
    batches = [
        encode(Columns([b"n%d" % at] * size), compression=Compression.ZSTD)
        for at, size in enumerate(sizes)
    ]
    await asyncio.gather(*[bench.admit(batch, topic()) for batch in batches])
    found = [(RecordBatch(data).values()[0], header.record_count) for data, header in bench.stored]
    assert found == [(b"N%d" % at, size) for at, size in enumerate(sizes)]


async def test_stopping_waits_for_both_steps() -> None:
    bench = Bench(Hook(upper))
    admitted = bench.admit(encode(Columns([b"a"] * 20_000), compression=Compression.ZSTD), topic())
    await bench.admission.checks.stop()
    assert len(bench.stored) == 1
    assert await admitted == 1


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
async def test_quarantined_ones_refuse_batches_or_let_them_pass(is_open: bool) -> None:
    settings = InterceptorSettings(failures_max=2, fail_open=["p0"] if is_open else [])
    hook = Hook(raising(ValueError("no")))
    bench = Bench(hook, settings=settings)
    batch = encode(Columns([b"a"]))
    for _ in range(2):
        with pytest.raises(InterceptorFailed):
            await bench.admit(batch, topic())
    if is_open:
        await bench.admit(batch, topic())
        assert bench.stored[0][0] is batch
    else:
        with pytest.raises(Unavailable, match="plugin p0: its interceptor is quarantined for topi"):
            await bench.admit(batch, topic())
    await bench.admit(batch, topic("other"))
    assert len(hook.seen) == 2


async def test_a_question_that_fails_is_a_failure() -> None:
    hook = Hook(upper)
    hook.takes = lambda topic: bool(1 // 0)
    bench = Bench(hook, Single(), settings=InterceptorSettings(failures_max=2))
    batch = encode(Columns([b"a"]))
    for _ in range(2):
        with pytest.raises(InterceptorFailed, match="plugin p0: .*ZeroDivisionError"):
            await bench.admit(batch, topic())
    with pytest.raises(Unavailable):
        await bench.admit(batch, topic())
    bench.interception.resume("p0")
    hook.takes = lambda topic: True
    await bench.admit(batch, topic())
    assert RecordBatch(bench.stored[0][0]).values() == [b"A"]


async def test_topics_first_seen_during_a_quarantine_are_shown_after_it() -> None:
    def slow(columns: Columns) -> Columns:
        bench.now += 1
        return upper(columns)

    settings = InterceptorSettings(overruns_max=1, cool_down_ms=10_000, fail_open=["p0"])
    bench = Bench(hook := Hook(slow), settings=settings)
    batch = encode(Columns([b"a"]))
    await bench.admit(batch, topic())
    hook.change = upper
    await bench.admit(batch, topic("t-new"))
    bench.now += 11
    await bench.admit(batch, topic("t-new"))
    assert [RecordBatch(data).values() for data, _ in bench.stored] == [[b"A"], [b"a"], [b"A"]]
