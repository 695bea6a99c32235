"""Goal: an interceptor that goes on failing, or takes too long, is not called for a while; what
becomes of records meanwhile is as the settings say, and it comes back by itself or by hand.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from lakemq.broker_core.api.errors import InterceptorFailed, InvalidRequest, Unavailable
from lakemq.broker_core.api.types import ANONYMOUS, Columns, Principal
from lakemq.broker_core.configuration.settings import InterceptorSettings
from lakemq.broker_core.publishing import breaker
from lakemq.broker_core.publishing.breaker import OVERRUN_WINDOW_S
from lakemq.broker_core.publishing.interception import Interception

SETTINGS = InterceptorSettings(
    budget_ms=100, overruns_max=3, failures_max=3, cool_down_ms=10_000, fail_open=[]
)
OPEN = SETTINGS.model_copy(update={"fail_open": ["line"]})


class Clock:
    """Says what time it is, and how often it was asked."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now


class Plugin:
    """Raises for `bad` values, refuses `no` values, takes as long as it is told to."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.takes_s = 0.0
        self.calls = 0

    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        self.calls += 1
        self.clock.now += self.takes_s
        if b"bad" in columns.values:
            raise ValueError("no unit")
        if b"no" in columns.values:
            raise InvalidRequest("not that")
        return columns._replace(values=[value and value.upper() for value in columns.values])


class Bench:
    """A plugin `line` whose interceptor is called by hand."""

    def __init__(self, settings: InterceptorSettings) -> None:
        self.clock = Clock()
        self.plugin = Plugin(self.clock)
        self.interception = Interception([("line", self.plugin)], self.clock, settings)

    def send(self, *values: bytes, topic: str = "t") -> list[Any]:
        pieces = self.interception.run(topic, Columns(list(values)), ANONYMOUS)
        return [each if isinstance(each, Exception) else each.values for _, each in pieces]

    def fail(self, times: int = 3, topic: str = "t") -> None:
        for _ in range(times):
            (error,) = self.send(b"bad", topic=topic)
            assert isinstance(error, InterceptorFailed)


def test_failures_in_a_row_quarantine_it_for_their_topic_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    bench = Bench(SETTINGS)
    bench.fail(2)
    assert bench.send(b"a") == [[b"A"]]  # one that works begins the count again
    bench.fail(3)
    before = bench.plugin.calls
    for _ in range(5):
        (error,) = bench.send(b"a", b"b")
        assert isinstance(error, Unavailable) and error.retriable
    assert "plugin line: its interceptor is quarantined for topic t: ValueError: no unit" in str(
        error
    )
    assert bench.plugin.calls == before
    assert bench.send(b"a", topic="other") == [[b"A"]]
    lines = [each.getMessage() for each in caplog.records if "quarantined" in each.getMessage()]
    assert lines == [
        "plugin line: its interceptor is quarantined for topic t: ValueError: no unit; records "
        "are refused meanwhile, and it is tried again after 10000 ms"
    ]
    assert bench.interception.begun("line") == 1


def test_a_group_in_which_some_pass_is_no_failure_and_its_search_counts_once() -> None:
    bench = Bench(SETTINGS)
    for _ in range(10):
        bench.send(b"a", b"bad", b"b", b"bad")
    assert bench.send(b"a") == [[b"A"]]
    for _ in range(2):
        bench.send(*[b"bad"] * 16)
    assert bench.send(b"a") == [[b"A"]]


def test_not_even_the_first_failure_counts_where_others_of_the_group_pass() -> None:
    bench = Bench(SETTINGS.model_copy(update={"failures_max": 1}))
    bench.send(b"a", b"bad")
    assert bench.send(b"a") == [[b"A"]]
    bench.fail(1)
    assert isinstance(bench.send(b"a")[0], Unavailable)


def test_a_refusal_in_words_of_its_own_is_no_failure() -> None:
    bench = Bench(SETTINGS)
    for _ in range(2):
        bench.fail(2)
        (error,) = bench.send(b"no")
        assert isinstance(error, InvalidRequest)
    assert not bench.interception.quarantines()["line"]


def test_open_ones_let_records_pass_unseen() -> None:
    bench = Bench(OPEN)
    bench.fail(3)
    assert bench.send(b"bad", b"a") == [[b"bad", b"a"]]


def test_it_is_tried_again_after_the_cool_down(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    bench = Bench(OPEN)
    bench.fail(3)
    bench.clock.now += 9.9
    assert bench.send(b"a") == [[b"a"]]
    bench.clock.now += 0.2
    bench.fail(1)  # tried in vain: the cool-down begins again, without another log line
    bench.clock.now += 9.9
    assert bench.send(b"a") == [[b"a"]]
    bench.clock.now += 0.2
    assert bench.send(b"a") == [[b"A"]]
    bench.fail(2)
    assert bench.send(b"a") == [[b"A"]]  # all of its failures are forgotten
    told = [each.getMessage() for each in caplog.records]
    assert sum("is quarantined" in each and "meanwhile" in each for each in told) == 1
    assert sum("it is called again" in each for each in told) == 1


def test_calls_over_the_budget_quarantine_it_for_all_topics() -> None:
    bench = Bench(SETTINGS)
    for topic in ("a", "b", "c"):
        bench.plugin.takes_s = 0.25
        assert bench.send(b"x", topic=topic) == [[b"X"]]
        bench.plugin.takes_s = 0.0
        if topic != "c":
            bench.send(b"x", topic=topic)  # quick ones between do not count
    (error,) = bench.send(b"x", topic="d")
    assert isinstance(error, Unavailable)
    assert "for all topics: a call took 250 ms; budget_ms is 100" in str(error)
    bench.clock.now += 10
    bench.plugin.takes_s = 0.25
    bench.send(b"x")
    assert isinstance(bench.send(b"x")[0], Unavailable)
    bench.clock.now += 10
    bench.plugin.takes_s = 0.0
    assert bench.send(b"x") == bench.send(b"x") == [[b"X"]]


def test_overruns_that_are_long_ago_do_not_count() -> None:
    bench = Bench(SETTINGS)
    bench.plugin.takes_s = 0.25
    for _ in range(9):
        assert bench.send(b"x") == [[b"X"]]
        bench.clock.now += OVERRUN_WINDOW_S / 2
    assert bench.interception.calls["line"].slow == 9
    assert bench.interception.begun("line") == 0


def test_it_comes_back_by_hand() -> None:
    bench = Bench(SETTINGS)
    bench.fail(3)
    bench.fail(3, topic="u")
    assert [each.topic for each in bench.interception.quarantines()["line"]] == ["t", "u"]
    assert len(bench.interception.resume("line")) == 2
    assert bench.send(b"a") == [[b"A"]]
    assert not bench.interception.resume("line")


def test_what_is_remembered_of_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "_STRIKES_MAX", 5)
    bench = Bench(SETTINGS)
    for number in range(20):
        bench.fail(3, topic=f"t{number}")
    found = bench.interception.quarantines()["line"]
    assert [each.topic for each in found] == [f"t{number}" for number in range(15, 20)]
    # What was forgotten begins anew.
    bench.fail(3, topic="t0")
    assert isinstance(bench.send(b"bad", topic="t0")[0], Unavailable)


def test_zero_switches_both_off() -> None:
    bench = Bench(SETTINGS.model_copy(update={"failures_max": 0, "overruns_max": 0}))
    bench.plugin.takes_s = 1.0
    bench.fail(50)
    assert bench.send(b"a") == [[b"A"]]


def test_changed_settings_count_from_the_next_call_on() -> None:
    bench = Bench(SETTINGS)
    bench.fail(3)
    bench.interception.reconfigure(OPEN)
    assert bench.send(b"a") == [[b"a"]]


def test_a_call_costs_one_look_at_the_clock_and_one_a_group() -> None:
    bench = Bench(SETTINGS)
    bench.clock.asked = 0
    bench.send(b"a", b"b")
    assert bench.clock.asked == 2
    assert not Interception([], bench.clock)


def test_another_interceptor_of_the_plugin_is_called_and_its_numbers_go_on() -> None:
    bench = Bench(SETTINGS)
    bench.fail(3)
    bench.interception.use([("line", bench.plugin)], renewed="other")
    assert bench.interception.quarantines()["line"]
    bench.interception.use([("line", Plugin(bench.clock))], renewed="line")
    assert bench.send(b"a") == [[b"A"]]
    assert bench.interception.calls["line"].calls == 4
