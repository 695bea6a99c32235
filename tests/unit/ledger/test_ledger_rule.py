"""Goal: a topic's setting `ledger` is understood or refused when it is set, with a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.records.ledger_rule import KEY, LedgerRule, Place, ledger_rule
from lakemq.broker_core.api.types import TopicConfig
from lakemq.broker_core.topic_names import check_config

SEQ = Place("field", ("seq",))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("sequence=$.seq", LedgerRule(KEY, SEQ)),
        (" device = key ; sequence = $.seq ", LedgerRule(KEY, SEQ)),
        (
            "device=client;sequence=header:n;first=0",
            LedgerRule(Place("header", ("mqtt.client",)), Place("header", ("n",)), first=0),
        ),
        (
            "device=$.a.b;interval=10s;time=$.at;from=latest",
            LedgerRule(
                Place("field", ("a", "b")), interval_ms=10_000, time=Place("field", ("at",)),
                from_latest=True,
            ),
        ),
        ("sequence=$.seq;wrap=256", LedgerRule(KEY, SEQ, wrap=256)),
        ("interval=250ms", LedgerRule(interval_ms=250)),
        ("interval=1h;from=earliest", LedgerRule(interval_ms=3_600_000)),
    ],
)  # fmt: skip
def test_rules(text: str, rule: LedgerRule) -> None:
    assert ledger_rule(text) == rule


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("device=key", "either sequence"),
        ("sequence=$.a;interval=1s", "either sequence"),
        ("sequenz=$.a", "'sequenz' is unknown; known: device"),
        ("sequence=$.a;sequence=$.b", "sequence takes one value"),
        ("sequence", "sequence takes one value"),
        ("sequence=seq", "sequence is 'seq'; it takes header:NAME"),
        ("sequence=key", "sequence is 'key'"),
        ("sequence=$.a..b", "'$.a..b'"),
        ("device=header:;sequence=$.a", "device is 'header:'; it takes key, client"),
        ("interval=10", "interval is '10'"),
        ("interval=0s", "interval is '0s'"),
        ("interval=367d", "interval is '367d'"),
        ("interval=1s;first=0", "first goes with sequence"),
        ("sequence=$.a;wrap=15", "whole number from 16"),
        ("sequence=$.a;first=-1", "whole number from 0"),
        ("sequence=$.a;first=1;wrap=256", "do not go together"),
        ("sequence=$.a;from=now", "from is 'now'"),
        ("sequence=$." + "a" * 250, "249 is the most"),
    ],
)
def test_what_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_config(replace(TopicConfig(), ledger=text))
    assert complaint in str(refused.value)
    assert str(refused.value).startswith("ledger: ")


def test_no_ledger() -> None:
    assert ledger_rule("") is None
    check_config(TopicConfig())


@given(st.text(alphabet="=;$.:abdefhiklmnqrstuvwxyz 0123456789", max_size=60))
def test_any_text_is_a_rule_or_refused(text: str) -> None:
    try:
        ledger_rule(text)
    except InvalidRequest as error:
        assert str(error).startswith("ledger: ")
