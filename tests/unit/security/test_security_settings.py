"""Goal: a wrong `[security]` section names file, line and setting, and never a secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakemq.broker_core.api.access import NO_CONTEXT, Operation, Principal, Resource, Rule
from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.configuration.config import load_config
from lakemq.broker_core.security.authz.rule_book import RuleBook
from lakemq.broker_core.security.settings import SecuritySettings
from lakemq.cli.commands import app


def loaded(folder: Path, text: str) -> SecuritySettings:
    file = folder / "lakemq.toml"
    file.write_text(text)
    return load_config(file, {}).security


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[security]\nanonymus = "never"', ":2: security.anonymus: unknown setting; did you mean"),
        ('[security]\nadmins = ["ann"]', ":2: security.admins: 'ann' is neither"),
        (
            '[[security.authenticators]]\nkind = "jwt"\nkey_fil = "x"',
            ":3: security.authenticators.0.key_fil: unknown setting; did you mean 'key_file'",
        ),
        (
            '[[security.authenticators]]\nkind = "certificate"\n'
            '[[security.authenticators]]\nkind = "jtw"',
            ":3: security.authenticators.1: unknown kind 'jtw'; did you mean 'jwt'",
        ),
        (
            '[[security.authenticators]]\nurl = "http://a"',
            "security.authenticators.0: kind is miss",
        ),
        (
            '[[security.authenticators]]\nkind = "password_file"',
            "security.authenticators.0.file: this setting is required",
        ),
        (
            '[[security.rules]]\nwho = ["ann"]\noperations = ["read"]\nresources = ["topic:a"]',
            ":1: security.rules.0: who 'ann'; it takes user:<name>",
        ),
        (
            '[[security.rules]]\nwho = ["any"]\noperations = ["read"]\nresources = ["a"]',
            "security.rules.0: resource 'a' is not <kind>:<name>",
        ),
        (
            '[[security.rules]]\nwho = ["any"]\noperations = ["all"]\nresources = ["topc:a"]',
            "security.rules.0: kind of resource 'topc'; did you mean 'topic'",
        ),
        ('[[security.quotas]]\nwho = "ann"', ":2: security.quotas.0.who"),
    ],
)
def test_faults_are_placed(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    assert said in str(caught.value)


def test_a_fault_beside_a_secret_does_not_show_it(tmp_path: Path) -> None:
    text = '[[security.authenticators]]\nkind = "http"\nheaders = {X = "hunter2"}\n'
    for wrong in ("", 'url = "ftp://a"\n', 'kind2 = "x"\nurl = "http://a"\n'):
        with pytest.raises(ConfigError) as caught:
            loaded(tmp_path, text + wrong)
        assert "hunter2" not in str(caught.value)


def test_what_holds_for_the_rest_follows_from_rules_unless_it_is_said(tmp_path: Path) -> None:
    rule = '[[security.rules]]\nwho = ["any"]\noperations = ["read"]\nresources = ["topic:a"]\n'
    assert loaded(tmp_path, "").unmatched_allows()
    assert not loaded(tmp_path, rule).unmatched_allows()
    assert not loaded(tmp_path, '[security]\nrules_file = "x"').unmatched_allows()
    assert loaded(tmp_path, '[security]\nunmatched = "allow"\n' + rule).unmatched_allows()


def test_rules_that_allow_nothing_new_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A rule of the MetaService alone closes nothing: what it is not about stays allowed."""
    book = RuleBook(loaded(tmp_path, ""), lambda: None)
    deny = Rule(("any",), ("all",), "topic", "audit", False)
    allow = Rule(("user:ann",), ("read",), "topic", "a")
    book.replace({"d": deny})
    assert not caplog.messages, "a rule that denies does what it says"
    for _ in range(3):
        book.replace({"d": deny, "a": allow})
    (told,) = caplog.messages
    assert "security.unmatched is allow" in told and "rules that allow have no effect" in told
    closed = RuleBook(loaded(tmp_path, '[security]\nunmatched = "deny"'), lambda: None)
    closed.replace({"a": allow})
    assert len(caplog.messages) == 1


def test_config_check_warns_of_rules_that_allow_nothing_new(tmp_path: Path) -> None:
    rule = '[[security.rules]]\nwho = ["any"]\noperations = ["read"]\nresources = ["topic:a"]\n'
    for unmatched, warned in (("allow", True), ("deny", False), ("", False)):
        text = f'[security]\nunmatched = "{unmatched}"\n' + rule
        loaded(tmp_path, text)
        arguments = ["config", "check", "--config", str(tmp_path / "lakemq.toml")]
        outcome = CliRunner().invoke(app, arguments)
        assert outcome.exit_code == 0
        assert ("rules that allow have no effect" in outcome.output) is warned


def test_a_rules_file_is_read_again_and_a_broken_one_is_not(tmp_path: Path) -> None:
    path, told = tmp_path / "rules.toml", list[str]()
    line = '[[rules]]\nwho = ["any"]\noperations = ["read"]\nresources = ["topic:{}"]\n'
    path.write_text(line.format("a"))
    settings = SecuritySettings(rules_file=str(path))
    book = RuleBook(settings, lambda: told.append("changed"))
    assert _names(book) == ["a"]
    path.write_text(line.format("longer"))
    book.refresh()
    assert _names(book) == ["longer"] and told == ["changed"]
    path.write_text(line.format("broken") + "oops = 1\n")
    book.refresh()
    assert _names(book) == ["longer"]
    with pytest.raises(ConfigError, match=r"rules.toml: rules.toml:5: rules.0.oops: unknown"):
        RuleBook(settings, lambda: None)


def _names(book: RuleBook) -> list[str]:
    """Of the rules that somebody has written."""
    return [rule.name for rule in book.rules.rules if not rule.rule_id.startswith("built-in")]


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("viewer", {"describe"}),
        ("reader", {"describe"}),
        ("operator", {"describe", "alter"}),
        ("admin", {each.value for each in Operation}),
        ("guest", set()),
    ],
)
def test_what_roles_of_operators_may(tmp_path: Path, role: str, may: set[str]) -> None:
    book = RuleBook(loaded(tmp_path, '[security]\nunmatched = "deny"'), lambda: None)
    who = Principal("ann", roles=(role,))
    for kind in ("cluster", "topic", "group", "schema", "transaction"):
        for operation in Operation:
            allowed = book.authorize(who, operation, Resource(kind, "x"), NO_CONTEXT)
            assert allowed is (operation.value in may), (kind, operation)
    book.replace({"d": Rule(("role:admin",), ("all",), "topic", "secret", False)})
    assert not book.authorize(who, Operation.READ, Resource("topic", "secret"), NO_CONTEXT)
    open_book = RuleBook(loaded(tmp_path, ""), lambda: None)
    assert open_book.rules.rules == ()
