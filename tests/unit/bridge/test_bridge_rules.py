"""Goal: names cross as the rules say, filters match as MQTT has them, settings are checked."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lakemq.broker_core.api.backoff import Backoff
from lakemq.plugins.mqtt.bridge.config import BridgeSettings, LinkSettings
from lakemq.plugins.mqtt.bridge.rules import Rule, Rules, Target
from lakemq.plugins.mqtt.bridge.topic_names import check_filter, check_name

RULE = {"direction": "out", "filter": "a/#"}


def link(**values: object) -> LinkSettings:
    return LinkSettings.model_validate(
        {"name": "far", "url": "mqtt://far", "rules": [RULE], **values}
    )


def test_prefixes_are_exchanged_both_ways() -> None:
    rules = Rules([Rule(True, True, "t/+", "here/", "there/", 2, "mqtt")])
    assert rules.remote("mqtt", "here/t/1") == Target("there/t/1", 2, "mqtt")
    assert rules.local("there/t/1") == Target("here/t/1", 2, "mqtt")
    assert rules.subscriptions == [("there/t/+", 2)]


@pytest.mark.parametrize("name", ["t/1", "here/t", "here/t/1/2", "here/", "", "here/t/+", "x\0"])
def test_other_names_stay(name: str) -> None:
    rules = Rules([Rule(True, False, "t/+", "here/", "there/", 1, "mqtt")])
    assert rules.remote("mqtt", name) is None


def test_only_records_of_the_rules_topic_go_out() -> None:
    rules = Rules([Rule(True, False, "#", "", "", 1, "mqtt")])
    assert rules.remote("other", "a") is None
    assert rules.local("a") is None, "nothing comes in by a rule that goes out"


def test_the_first_rule_counts() -> None:
    rules = Rules(
        [
            Rule(True, False, "a/b", "", "x/", 1, "mqtt"),
            Rule(True, False, "a/#", "", "y/", 1, "mqtt"),
        ]
    )
    assert rules.remote("mqtt", "a/b") == Target("x/a/b", 1, "mqtt")
    assert rules.remote("mqtt", "a/c") == Target("y/a/c", 1, "mqtt")


def test_rules_that_may_echo_are_found() -> None:
    out, back = (
        Rule(True, False, "a/#", "", "s/", 1, "mqtt"),
        Rule(False, True, "+/b", "", "", 1, "mqtt"),
    )
    assert Rules([out, back]).echoes() == []
    assert len(Rules([Rule(True, True, "a/#", "", "", 1, "mqtt")]).echoes()) == 1


@pytest.mark.parametrize("text", ["", "a/#/b", "a#", "a+/b", "\0", "x" * 65_536])
def test_bad_filters_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="filter|alone|level"):
        check_filter(text)


def test_wildcards_are_no_names() -> None:
    with pytest.raises(ValueError, match="wildcard"):
        check_name("a/+")


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"url": "http://far"}, "mqtt://host:port"),
        ({"url": "mqtt://user:secret@far"}, "own"),
        ({"url": "mqtt://far:99999"}, "ort"),
        ({"tls_ca": "ca.pem"}, "mqtts"),
        ({"tls_cert": "c.pem", "url": "mqtts://far"}, "together"),
        ({"password_env": "P"}, "username"),
        ({"retry_min_ms": 100, "retry_max_ms": 50}, "retry_max_ms"),
        ({"rules": []}, "rules"),
        ({"rules": [{**RULE, "remote_prefix": "a/+/"}]}, "wildcard"),
        ({"rules": [{**RULE, "filter": "a/#/b"}]}, "a whole level, and the last"),
        ({"rules": [{**RULE, "qos": 3}]}, "qos"),
        ({"name": "Far Away"}, "name"),
    ],
)
def test_wrong_settings_are_told(values: dict[str, object], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        link(**values)


def test_ports_have_defaults() -> None:
    assert (link().host, link().port, link().secure) == ("far", 1883, False)
    other = link(url="mqtts://[::1]")
    assert (other.host, other.port, other.secure) == ("::1", 8883, True)


def test_links_have_names_of_their_own() -> None:
    one = link().model_dump()
    with pytest.raises(ValidationError, match="same name"):
        BridgeSettings.model_validate({"links": [one, one]})


def test_waits_double_with_jitter_up_to_a_bound() -> None:
    lowest, highest = Backoff(100, 1000, lambda: 0.0), Backoff(100, 1000, lambda: 0.999_999)
    assert [lowest.next_ms() for _ in range(6)] == [50, 100, 200, 400, 500, 500]
    assert [round(highest.next_ms()) for _ in range(6)] == [100, 200, 400, 800, 1000, 1000]
    lowest.reset()
    assert lowest.next_ms() == 50
    assert [lowest.next_ms() for _ in range(5000)][-1] == 500
