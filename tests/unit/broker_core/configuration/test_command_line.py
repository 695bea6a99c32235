"""Goal: commands of every package share options, tables and the way they fail."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import typer
from typer.testing import CliRunner

from lakemq.broker_core.api.command_line import (
    AdminOptions,
    BrokerOptions,
    MetaOptions,
    fail,
    option_groups,
    print_table,
    say,
    secret,
)
from lakemq.broker_core.api.command_line.output import Output, printed_as
from lakemq.broker_core.api.errors import (
    ConfigError,
    NotAuthorized,
    TopicExists,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
)
from lakemq.meta_service.api.errors import NotFound, PermissionDenied

app = typer.Typer()


@app.command("broker")
@option_groups
def broker_of(name: str, count: int = 1, *, broker: BrokerOptions) -> None:
    typer.echo(json.dumps([name, count, broker.bootstrap]))


@app.command("members")
@option_groups
def members_of(members: MetaOptions) -> None:
    typer.echo(json.dumps(asdict(members)))


@app.command("admin")
@option_groups
def admin_of(node: AdminOptions) -> None:
    typer.echo(json.dumps(asdict(node)))


@app.command("fails")
def fails() -> None:
    fail(ValueError("first\nsecond"))


def printed(*arguments: str, **environment: str) -> object:
    result = CliRunner().invoke(app, arguments, env=environment)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_a_group_is_one_parameter_of_the_command() -> None:
    given = printed("members", "-a", "a:1", "--address", "b:2", "--tls-ca", "ca.pem")
    assert given == {"address": ["a:1", "b:2"], "tls_cert": "", "tls_key": "", "tls_ca": "ca.pem"}
    assert printed("members") == {**given, "address": ["127.0.0.1:9701"], "tls_ca": ""}


def test_options_come_from_the_environment_too() -> None:
    environment = {
        "LAKEMQ_TLS_CERT": "c",
        "LAKEMQ_TLS_KEY": "k",
        "LAKEMQ_TLS_CA": "a",
        "LAKEMQ_USERNAME": "u",
        "LAKEMQ_ADMIN": "https://n:2",
    }
    files = {"tls_cert": "c", "tls_key": "k", "tls_ca": "a", "username": "u"}
    assert printed("admin", **environment) == {"admin": "https://n:2", **files}
    assert printed("admin", "--admin", "m:3", **environment) == {"admin": "m:3", **files}


def test_other_parameters_stay_as_they_are() -> None:
    assert printed("broker", "x") == ["x", 1, "127.0.0.1:9700"]
    assert printed("broker", "x", "--bootstrap", "b:1", "--count", "2") == ["x", 2, "b:1"]


def test_groups_that_share_options_are_refused_in_one_command() -> None:
    def command(broker: BrokerOptions, members: MetaOptions) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'tls_cert'"):
        option_groups(command)


def test_an_error_is_one_line_after_another_and_exit_code_1() -> None:
    result = CliRunner().invoke(app, ["fails"])
    assert (result.exit_code, result.stderr) == (1, "lakemq: first\nlakemq: second\n")


def test_a_table_is_neither_cut_nor_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    print_table(("topic", "records"), [("a", 1), (long, 1000), ("温度", None)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "topic" + " " * 297 + "records"
    assert lines[1] == "a" + " " * 307 + "1"
    assert lines[2] == f"{long}    1,000"
    assert lines[3] == "温度" + " " * 304 + "-"


def test_the_same_as_json_keeps_numbers_and_what_is_absent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with printed_as(Output.JSON):
        print_table(("topic", "log end"), [("a", 1000), ("b", None)])
        print_table(("topic",), [])
        say("created a", created=b"a\xff")
        with pytest.raises(typer.Exit) as ended:
            fail(UnknownTopic("no topic 'a'"))
    said = capsys.readouterr()
    assert [json.loads(line) for line in said.out.splitlines()] == [
        [{"topic": "a", "log_end": 1000}, {"topic": "b", "log_end": None}],
        [],
        {"created": "a\\xff"},
    ]
    assert json.loads(said.err) == {
        "error": "no topic 'a'", "code": "UNKNOWN_TOPIC", "exit_code": 4
    }  # fmt: skip
    assert ended.value.exit_code == 4


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2), (Unavailable("x"), 3), (TimeoutError("x"), 3),
        (UnknownGroup("x"), 4), (NotFound("x"), 4), (NotAuthorized("x"), 5),
        (PermissionDenied("x"), 5), (TopicExists("x"), 1), ("x", 1),
    ],
)  # fmt: skip
def test_an_error_has_its_exit_code(error: object, code: int) -> None:
    with pytest.raises(typer.Exit) as ended:
        fail(error)
    assert ended.value.exit_code == code


def test_secrets_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEMQ_TOKEN", "t")
    monkeypatch.setenv("LAKEMQ_PASSWORD", "")
    assert (secret("TOKEN"), secret("PASSWORD")) == ("t", None)
