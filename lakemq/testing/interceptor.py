"""What every interceptor must do: the suite for the port `Interceptor`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy
from typing import Final

import pytest

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.ports import BatchInterceptor, Interceptor
from lakemq.broker_core.api.records.batch import RecordBatch, encode
from lakemq.broker_core.api.records.headers import decode_headers, encode_headers
from lakemq.broker_core.api.types import Columns, Principal

CALL_MAX_S: Final = 0.1
"""A call on the event loop that takes as long is logged as a warning."""
LARGE: Final = 1000
ORDINARY: Final = (
    Columns([b"one"]),
    Columns([b"one", None, b""], [b"k", None, b""]),
    Columns(
        [b"1", b"2"], None, [encode_headers((("unit", b"C"), ("none", None))), b""], [1_000, 2_000]
    ),
    Columns([b'{"n": 1}', b"\xff\x00"], [b"a", b"b"], [b"", b""], [0, 1]),
    Columns([b"%d" % n for n in range(LARGE)], [b"k"] * LARGE),
)


class InterceptorContract:
    """Give the fixture `interceptor`. Override `topic` and `principal` where it looks at them, and
    `samples` with records that it changes; `refused` are groups that it must refuse.

    Of the ordinary records the suite asks only what holds for all interceptors: it may refuse
    some of them, with a LakeMQError.
    """

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def topic(self) -> str:
        """The topic that records are shown under."""
        return "contract"

    @pytest.fixture
    def principal(self) -> Principal:
        """Who sends the records."""
        return Principal("ann")

    @pytest.fixture
    def samples(self) -> Sequence[Columns]:
        """Groups of records that it changes and must not refuse; by default none."""
        return ()

    @pytest.fixture
    def refused(self) -> Sequence[Columns]:
        """Groups of records that it must refuse; by default none."""
        return ()

    async def test_what_it_gives_can_be_stored(
        self, interceptor: Interceptor, topic: str, principal: Principal, samples: Sequence[Columns]
    ) -> None:
        """As many rows in each column as came, headers that decode, and values that survive a
        record batch."""
        for columns in (*samples, *ORDINARY):
            given = intercepted(interceptor, topic, columns, principal)
            if given is None:
                assert columns in ORDINARY, f"a sample is refused: {columns}"
                continue
            assert isinstance(given, Columns), f"it gave {type(given).__name__}"
            for column in given:
                assert column is None or len(column) == len(columns.values), "as many as came"
            stored = RecordBatch(encode(given, now_ms=1)).records()
            assert [each.value for each in stored] == list(given.values)
            for headers in given.headers or ():
                decode_headers(headers)

    async def test_what_came_is_left_as_it_was(
        self, interceptor: Interceptor, topic: str, principal: Principal, samples: Sequence[Columns]
    ) -> None:
        """The caller tries the same columns again by halves when a record is refused."""
        for columns in (*samples, *ORDINARY):
            before = deepcopy(columns)
            intercepted(interceptor, topic, columns, principal)
            assert columns == before

    async def test_records_shown_again_or_by_halves_come_out_the_same(
        self, interceptor: Interceptor, topic: str, principal: Principal, samples: Sequence[Columns]
    ) -> None:
        """The broker shows records again after a refusal, by halves, until it has found the bad
        one."""
        for columns in (*samples, *ORDINARY):
            whole = intercepted(interceptor, topic, columns, principal)
            if whole is None:
                continue
            assert intercepted(interceptor, topic, columns, principal) == whole
            middle = len(columns.values) // 2
            parts = [
                intercepted(interceptor, topic, part(columns, half), principal)
                for half in (slice(0, middle), slice(middle, None))
                if columns.values[half]
            ]
            assert None not in parts, "it refuses a part of what it takes as a whole"
            rows = [row for each in parts if each is not None for row in rows_of(each)]
            assert rows == rows_of(whole)

    async def test_refusals_are_errors_of_lakemq(
        self, interceptor: Interceptor, topic: str, principal: Principal, refused: Sequence[Columns]
    ) -> None:
        """A LakeMQError, not another exception."""
        for columns in refused:
            assert intercepted(interceptor, topic, columns, principal) is None, columns

    async def test_it_says_which_batches_it_takes(
        self, interceptor: Interceptor, topic: str
    ) -> None:
        """The answer is kept: True or False, the same each time. Without `takes_batches` none."""
        if isinstance(interceptor, BatchInterceptor):
            answers = [interceptor.takes_batches(topic) for _ in range(3)]
            assert answers in ([True] * 3, [False] * 3), f"takes_batches gave {answers}"

    async def test_it_does_not_hold_the_event_loop(
        self, interceptor: Interceptor, topic: str, principal: Principal
    ) -> None:
        """At best of three: a busy machine is not its fault."""
        spent = []
        for _ in range(3):
            before = time.perf_counter()
            intercepted(interceptor, topic, ORDINARY[-1], principal)
            spent.append(time.perf_counter() - before)
        assert min(spent) < CALL_MAX_S, f"{LARGE} records took {min(spent):.3f} s"


def intercepted(
    interceptor: Interceptor, topic: str, columns: Columns, principal: Principal
) -> Columns | None:
    """What it gives; None when it refuses. Whatever else is raised fails the test."""
    try:
        return interceptor.intercept(topic, columns, principal)
    except LakeMQError:
        return None


def part(columns: Columns, which: slice) -> Columns:
    """Some of the records."""
    values, keys, headers, times = columns
    return Columns(
        values[which],
        keys and keys[which],
        headers and headers[which],
        times and times[which],
    )


def rows_of(columns: Columns) -> list[tuple[object, ...]]:
    """Record by record, columns that are not there filled up."""
    count = len(columns.values)
    absent = ([None] * count, [None] * count, [b""] * count, [None] * count)
    filled = [
        list(each) if each is not None else none for each, none in zip(columns, absent, strict=True)
    ]
    return list(zip(*filled, strict=True))
