"""Goal: the guide's configuration is a whole one, and does what the guide says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from lakemq.broker_core.api.access import AccessContext, Operation, Principal, Resource
from lakemq.broker_core.configuration.config import load_config
from lakemq.broker_core.security.authz.rule_book import RuleBook
from lakemq.broker_core.security.settings import HttpRulesSettings, HttpSettings, JwtSettings
from tests.test_docs import FENCE

PAGE = Path(__file__).parents[3] / "docs/security.md"
FIRST, ISSUER, HTTP, ASKED, QUOTAS, _ = [
    text for kind, text in FENCE.findall(PAGE.read_text()) if kind == "toml"
]
DEVICE = Principal("sensor-1", roles=("device",))
ANALYST = Principal("ann", roles=("analyst",))


@pytest.mark.parametrize(
    ("principal", "operation", "resource", "verdict"),
    [
        (DEVICE, Operation.WRITE, "topic_name:devices/c1/t", True),
        (DEVICE, Operation.WRITE, "topic_name:devices/c2/t", False),
        (DEVICE, Operation.READ, "topic_name:commands/c1/#", True),
        (DEVICE, Operation.READ, "topic_name:#", False),
        (DEVICE, Operation.READ, "topic:mqtt", False),
        (ANALYST, Operation.READ, "topic:mqtt", True),
        (ANALYST, Operation.READ, "group:analytics-1", True),
        (ANALYST, Operation.WRITE, "topic:mqtt", False),
        (Principal("root"), Operation.DELETE, "topic:mqtt", True),
    ],
)
def test_the_first_configuration(
    tmp_path: Path, principal: Principal, operation: Operation, resource: str, verdict: bool
) -> None:
    file = tmp_path / "lakemq.toml"
    file.write_text(FIRST)
    book = RuleBook(load_config(file, {}).security, lambda: None)
    kind, _, name = resource.partition(":")
    context = AccessContext("mqtt", "c1", qos=1, retain=False)
    assert book.authorize(principal, operation, Resource(kind, name), context) is verdict


def test_the_issuer_is_configured_so() -> None:
    (written,) = tomllib.loads(ISSUER)["security"]["authenticators"]
    assert JwtSettings.model_validate(written).discovery


def test_the_web_service_is_configured_so() -> None:
    (written,) = tomllib.loads(HTTP)["security"]["authenticators"]
    assert HttpSettings.model_validate(written).cache_ms == 30_000
    (written,) = tomllib.loads(ASKED)["security"]["authorizers"]
    assert HttpRulesSettings.model_validate(written).unreachable == "deny"


def test_the_quotas_are_as_written(tmp_path: Path) -> None:
    file = tmp_path / "lakemq.toml"
    file.write_text(QUOTAS)
    device, reports = load_config(file, {}).security.quotas
    assert device.limits().records_per_s == 500
    assert reports.limits().bytes_out_per_s == 10_000_000
