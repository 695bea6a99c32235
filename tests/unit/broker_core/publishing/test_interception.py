"""Goal: an interceptor that fails, in whatever way, refuses the records that it fails on and no
other, and is named; a slow one is told of.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any

import pytest

from lakemq.broker_core.api.errors import InterceptorFailed, InvalidRequest, LakeMQError
from lakemq.broker_core.api.types import ANONYMOUS, Columns, Principal
from lakemq.broker_core.publishing.interception import LOG_EVERY_S, SEARCH_S, Interception

GIVEN = Columns([b"a", None], [b"k", None], [b"", b""])


class Hook:
    """Answers what `answer` gives; counts its calls."""

    def __init__(self, answer: Callable[[Columns], Any]) -> None:
        self.answer = answer
        self.calls: list[int] = []

    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        self.calls.append(len(columns.values))
        found: Columns = self.answer(columns)
        return found


class Clock:
    """Each question passes `step` seconds."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def refuse(error: BaseException) -> Callable[[Columns], Columns]:
    def answer(columns: Columns) -> Columns:
        raise error

    return answer


def run(answer: Callable[[Columns], Any], given: Columns = GIVEN, step: float = 0.0) -> list[Any]:
    return Interception([("line", Hook(answer))], Clock(step)).run("t", given, ANONYMOUS)


def test_what_it_returns_is_stored() -> None:
    def stamp(columns: Columns) -> Columns:
        return columns._replace(values=[b"b", b"c"], keys=None, timestamps_ms=[1, 2])

    assert run(stamp) == [(2, Columns([b"b", b"c"], None, [b"", b""], [1, 2]))]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (refuse(KeyError("unit")), "KeyError: 'unit'"),
        (refuse(RecursionError("deep")), "RecursionError: deep"),
        (refuse(SystemExit(3)), "SystemExit: 3"),
        (refuse(asyncio.CancelledError("x")), "CancelledError: x"),
        (lambda columns: None, "it returned NoneType, not Columns"),
        (lambda columns: tuple(columns), "it returned tuple, not Columns"),
        (lambda columns: columns._replace(values=[]), "it returned 0 values for [12] record"),
        (lambda columns: columns._replace(values=None), "values is None"),
        (lambda columns: columns._replace(values=5), "TypeError"),
        (lambda columns: columns._replace(keys=[b"a"] * 3), "it returned 3 keys for [12] record"),
        (
            lambda columns: columns._replace(values=["a"] * len(columns.values)),
            "it returned values of type str; they are None or bytes",
        ),
        (
            lambda columns: columns._replace(headers=[b"?"] * len(columns.values)),
            "CorruptBatch: record headers",
        ),
        (
            lambda columns: columns._replace(timestamps_ms=[1 << 63] * len(columns.values)),
            "a timestamp outside 64 bits",
        ),
        (
            lambda columns: columns._replace(timestamps_ms=[True] * len(columns.values)),
            "it returned timestamps_ms of type bool; they are int",
        ),
    ],
)
def test_whatever_it_does_is_a_refusal_that_names_it(
    answer: Callable[[Columns], Any], text: str
) -> None:
    pieces = run(answer)
    assert sum(count for count, _ in pieces) == 2
    for _, error in pieces:
        assert isinstance(error, InterceptorFailed)
        assert str(error).startswith("plugin line: its interceptor failed: ")
        with pytest.raises(InterceptorFailed, match=text):
            raise error


def test_records_that_came_with_the_one_at_fault_are_stored() -> None:
    def strict(columns: Columns) -> Columns:
        if b"bad" in columns.values:
            raise ValueError("bad")
        return columns._replace(values=[value and value.upper() for value in columns.values])

    values = [b"v%d" % number for number in range(1000)]
    values[17] = values[18] = values[999] = b"bad"
    hook = Hook(strict)
    pieces = Interception([("line", hook)], Clock()).run(
        "t", Columns(values, [b"k"] * 1000), ANONYMOUS
    )
    outcome: list[object] = []
    for count, piece in pieces:
        outcome += [NoneType] * count if isinstance(piece, LakeMQError) else piece.values
    assert outcome == [NoneType if v == b"bad" else v.upper() for v in values]
    assert len(hook.calls) < 100


def test_a_refusal_in_its_own_words_stays_as_it_is() -> None:
    error = InvalidRequest("no unit")
    assert run(refuse(error), Columns([b"a"])) == [(1, error)]


def test_the_search_for_those_at_fault_ends() -> None:
    """A hook that takes long and always raises is not called thousands of times for one group."""
    hook = Hook(refuse(ValueError("no")))
    clock = Clock(SEARCH_S / 4)
    pieces = Interception([("line", hook)], clock).run("t", Columns([b"a"] * 5000), ANONYMOUS)
    assert sum(count for count, _ in pieces) == 5000
    assert len(hook.calls) < 20


def test_the_chain_goes_on_with_what_the_first_gave() -> None:
    first = Hook(lambda columns: columns._replace(values=[b"1", b"2"]))
    second = Hook(lambda columns: columns._replace(values=[b"<" + v for v in columns.values]))
    chain = Interception([("a", first), ("b", second)], Clock())
    assert chain.run("t", GIVEN, ANONYMOUS)[0][1] == GIVEN._replace(values=[b"<1", b"<2"])


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    caplog.set_level(logging.WARNING)

    def taken() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    yield taken


def test_a_slow_one_is_told_of_now_and_then(lines: Callable[[], list[str]]) -> None:
    clock = Clock()

    def sleep(columns: Columns) -> Columns:
        clock.now += 2.0
        return columns

    chain = Interception([("line", Hook(sleep))], clock)
    for _ in range(3):
        chain.run("t", GIVEN, ANONYMOUS)
    (line,) = lines()
    assert "plugin line: its interceptor took 2000 ms" in line
    assert (chain.calls["line"].slow, round(chain.calls["line"].seconds)) == (3, 6)
    clock.now += LOG_EVERY_S
    chain.run("t", GIVEN, ANONYMOUS)
    assert "(4 slow calls so far)" in lines()[0]


def test_failures_are_counted_and_told_of_now_and_then(lines: Callable[[], list[str]]) -> None:
    chain = Interception([("line", Hook(refuse(ValueError("no"))))], Clock())
    for _ in range(5):
        chain.run("t", Columns([b"a"]), ANONYMOUS)
    (line,) = lines()
    assert "plugin line: its interceptor failed: ValueError: no" in line
    assert chain.calls["line"].failures == 5
