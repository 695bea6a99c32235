"""Goal: a bucket lets its rate through and no more; a second's worth is there at once."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.limits.rates import Bucket


def test_a_bucket_lets_the_rate_through_and_no_more() -> None:
    bucket = Bucket(100, 0)
    assert [bucket.pay(100, 0), bucket.pay(50, 0)] == [0, 500]
    assert [bucket.pay(0, now_ms) for now_ms in (0, 250, 500)] == [500, 250, 0]
    # Idle time buys one second's worth, not ten.
    assert [bucket.pay(100, 10_000), bucket.pay(1, 10_000)] == [0, 10]


def test_a_bucket_without_a_rate_has_no_limit() -> None:
    bucket = Bucket(0, 0)
    assert (bucket.pay(10**9, 0), bucket.take(0)) == (0, True)
    bucket.per_second = 1
    assert [bucket.take(0), bucket.take(0), bucket.take(999), bucket.take(1000)] == [
        True,
        False,
        False,
        True,
    ]


def test_another_rate_leaves_what_is_owed_in_time() -> None:
    bucket = Bucket(100, 0)
    assert bucket.pay(300, 0) == 2000
    bucket.per_second = 1000
    assert [bucket.pay(0, 0), bucket.pay(1000, 0)] == [2000, 3000]


@pytest.mark.parametrize("per_second", [1, 2, 3, 7, 11, 30, 97, 333, 1001, 99_991])
def test_a_seconds_worth_is_there_at_once_and_then_what_time_brings(per_second: int) -> None:
    now_ms = 1_800_000_000_000
    bucket = Bucket(per_second, now_ms)
    assert sum(bucket.take(now_ms) for _ in range(per_second + 10)) == per_second
    paying = Bucket(per_second, now_ms)
    assert {paying.pay(1, now_ms) for _ in range(per_second)} == {0}
    assert paying.pay(1, now_ms) == pytest.approx(1000 / per_second, abs=1e-5)
    later_ms = now_ms + 3000 * 1000 // per_second
    due = (later_ms - now_ms) * per_second // 1000
    assert sum(bucket.take(later_ms) for _ in range(due + 10)) == min(due, per_second)
