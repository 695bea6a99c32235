"""Goal: interceptors are replaced between two groups; new ones do not pay for what old ones did,
and quarantines of other plugins last."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.types import ANONYMOUS, Columns, Principal
from lakemq.broker_core.configuration.settings import InterceptorSettings
from lakemq.broker_core.publishing.interception import Interception


class Fails:
    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        raise ValueError("no")


class Passes:
    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        return columns


def run(chain: Interception, topic: str = "t") -> object:
    ((_, piece),) = chain.run(topic, Columns([b"x"]), ANONYMOUS)
    return piece


@pytest.fixture
def both_failed() -> Interception:
    """Plugin `a` is quarantined for topic `t`, `b` for `u`."""
    passes, fails = Passes(), Fails()
    chain = Interception([("a", fails), ("b", passes)], lambda: 0.0, InterceptorSettings())
    while not isinstance(run(chain), Unavailable):
        pass
    chain.use([("a", passes), ("b", fails)])
    while not isinstance(run(chain, "u"), Unavailable):
        pass
    return chain


def test_a_renewed_plugin_is_called_again(both_failed: Interception) -> None:
    both_failed.use([("a", Passes()), ("b", Passes())], "a")
    assert isinstance(run(both_failed, "t"), Columns)
    assert isinstance(run(both_failed, "u"), Unavailable)


def test_numbers_go_on_also_of_a_plugin_that_has_none_now(both_failed: Interception) -> None:
    before = both_failed.calls["a"].failures
    assert before > 0
    both_failed.use([("b", Passes()), ("c", Passes())], "a")
    assert both_failed.calls["a"].failures == before
    assert isinstance(run(both_failed, "t"), Columns)
    assert both_failed.calls["c"].calls == 1
