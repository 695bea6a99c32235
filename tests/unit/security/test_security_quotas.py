"""Goal: nobody gets more than its rate over time; a burst of a second is free."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.access import ANONYMOUS, Principal
from lakemq.broker_core.api.limits.rates import BURST_MS
from lakemq.broker_core.security import quotas
from lakemq.broker_core.security.quotas import Limits, Quotas, Use

ANN = Principal("ann", roles=("plain", "rich"))
RATE = 1000


def test_without_limits_nothing_is_kept() -> None:
    made = Quotas({})
    assert made.charge(ANN, Use(10**9), 0) == 0
    assert not made._buckets


def test_a_second_ahead_is_free_and_debt_is_waited_for() -> None:
    made = Quotas({"any": Limits(bytes_in_per_s=RATE)})
    assert made.charge(ANN, Use(bytes_in=RATE), 10_000) == 0
    assert made.charge(ANN, Use(bytes_in=RATE), 10_000) == 1000
    assert made.charge(ANN, Use(), 10_400) == 600
    assert made.charge(ANN, Use(), 11_000) == 0
    assert made.charge(ANN, Use(bytes_out=10**6), 11_000) == 0, "the other way is not limited"


@pytest.mark.parametrize("limited", ["bytes_in", "bytes_out", "records"])
def test_only_what_has_a_limit_is_limited(limited: str) -> None:
    made = Quotas({"any": Limits(**{f"{limited}_per_s": RATE})})
    for used in ("bytes_in", "bytes_out", "records_in", "records_out"):
        waits = made.charge(Principal(used), Use(**{used: 10 * RATE}), 10_000)
        assert waits == (9_000 if used.startswith(limited) else 0)


def test_waits_are_counted_and_others_limits_are_not_ones_own() -> None:
    made = Quotas({"user:bob": Limits(bytes_in_per_s=RATE)})
    assert made.charge(ANN, Use(bytes_in=10 * RATE), 10_000) == 0
    assert made.waits_ms == 0
    bob = Principal("bob")
    waits = [made.charge(bob, Use(bytes_in=2 * RATE), 10_000) for _ in range(2)]
    assert waits == [1_000, 3_000]
    assert made.waits_ms == sum(waits)


def test_who_wrote_too_much_may_still_read() -> None:
    made = Quotas({"any": Limits(bytes_in_per_s=RATE, bytes_out_per_s=RATE)})
    assert made.charge(ANN, Use(bytes_in=5 * RATE), 10_000) == 4000
    assert made.charge(ANN, Use(bytes_out=RATE), 10_000) == 0
    assert made.charge(ANN, Use(), 10_000) == 4000


@given(
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 3_000)), min_size=1, max_size=40),
    st.integers(1, 10_000),
)
def test_who_waits_as_told_stays_within_its_rate(uses: list[tuple[int, int]], rate: int) -> None:
    """At any moment no more was used than the rate allows for the time, a second and one use."""
    made = Quotas({"user:ann": Limits(bytes_in_per_s=rate)})
    start = now = 1_000_000
    total = 0
    for amount, pause in uses:
        allowed = rate * (now - start + BURST_MS) / 1000
        assert total <= allowed + rate / 1000 + 1
        total += amount
        now += made.charge(ANN, Use(bytes_in=amount), now) + pause


def test_the_most_particular_limit_counts() -> None:
    made = Quotas(
        {
            "any": Limits(records_per_s=1),
            "role:rich": Limits(records_per_s=100),
            "user:bob": Limits(records_per_s=5),
            "anonymous": Limits(records_per_s=2),
        }
    )
    for principal, rate in [
        (ANN, 100),
        (Principal("bob", roles=("rich",)), 5),
        (Principal("cid"), 1),
        (ANONYMOUS, 2),
    ]:
        assert made.rates_of(principal) == Use(0, 0, rate, rate)
    assert made.rates_of(Principal("n", "node")) is None


def test_other_limits_hold_at_once_and_what_was_used_stays_used() -> None:
    made = Quotas({"any": Limits(bytes_in_per_s=RATE)})
    assert made.charge(ANN, Use(bytes_in=3 * RATE), 10_000) == 2000
    made.replace({"any": Limits(bytes_in_per_s=10 * RATE)})
    assert made.charge(ANN, Use(), 10_000) == 2000
    assert made.charge(ANN, Use(bytes_in=10 * RATE), 10_000) == 3000
    made.replace({})
    assert made.charge(ANN, Use(bytes_in=10**9), 10_000) == 0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "PRINCIPALS_MAX", 100)
    made = Quotas({"any": Limits(bytes_in_per_s=RATE)})
    for number in range(1000):
        made.charge(Principal(f"u{number}"), Use(bytes_in=1), number)
    assert len(made._buckets) == 100
