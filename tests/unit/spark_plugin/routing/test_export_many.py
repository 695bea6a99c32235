"""Many topics in one job, bounds of an export, and what it tells OpenTelemetry."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from lakemq.broker_core.api.command_line import BrokerOptions
from lakemq.broker_core.api.types import Columns
from lakemq.spark_plugin.access import Access, parse_access
from lakemq.spark_plugin.cli.broker_access import access_of
from lakemq.spark_plugin.errors import DataLossError, OptionError
from lakemq.spark_plugin.export.job import runner, write_task
from lakemq.spark_plugin.export.job.bounds import bounded, parse_bound
from lakemq.spark_plugin.export.job.metrics import ExportMetrics, observe
from lakemq.spark_plugin.export.job.run import is_known, make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.routing.topics import matching, settings_of
from lakemq.spark_plugin.export.tables.target import Target
from lakemq.spark_plugin.service.server import serve
from tests.support.spark.lake_tables import FORMATS, places, read_table, target_in


def run_here(tasks):
    return [
        result for task in tasks for result in write_task.run(WriteTask.from_json(task.to_json()))
    ]


class Told:
    """A progress that keeps what it is told."""

    def __init__(self, topic):
        self.topic = topic
        self.rows = 0
        self.closed = False

    def cleaned(self, attempts):
        pass

    def committed(self, report):
        self.rows += report.rows

    def compacted(self, done):
        pass

    def finished(self):
        pass

    def close(self):
        self.closed = True


def job(target, pattern="", **settings):
    told = []

    def progress(topic):
        told.append(Told(topic))
        return told[-1]

    given = ExportSettings("memory", settings.pop("topic", ""), target, "", **settings)
    made = runner.Job(
        given, lambda each: make_exporter(each, run_here), progress, pattern, is_known=is_known
    )
    return made, told


def fill(memory, name, count=10):
    memory.create_topic(name, 2)
    for partition in range(2):
        memory.append(name, partition, Columns([b"%d" % n for n in range(count)]))


ALL = [(partition, offset) for partition in range(2) for offset in range(10)]


def many(tmp_path, kind):
    one = target_in(tmp_path, kind)
    if kind == "iceberg":
        return Target("iceberg", table="lake.t_{topic}", catalog=one.catalog)
    return Target(kind, path=f"{one.path}/{{topic}}/data")


@pytest.mark.parametrize("kind", FORMATS)
def test_each_topic_has_a_table(memory, tmp_path, kind):
    for name in ("air.in", "air.out", "water"):
        fill(memory, name)
    target = many(tmp_path, kind)
    made, told = job(target, r"air\..*", commit_rows=7)
    commits = []
    made.tell = lambda settings, report: commits.append(
        (settings.topic, sum(report.offsets.values()))
    )
    made.run()
    assert max(count for topic, count in commits if topic == "air.in") == 20
    assert len(commits) == 8
    assert sorted((each.topic, each.rows, each.closed) for each in told) == [
        ("air.in", 20, True),
        ("air.out", 20, True),
    ]
    for name in ("air.in", "air.out"):
        assert places(read_table(settings_of(made.settings, name).target)) == ALL
    assert {each.topic: each.lag for each in made.metrics} == {"air.in": 0, "air.out": 0}
    again, _ = job(target, r"air\..*")
    again.run()
    assert [each.rows for each in again.metrics] == [0, 0]


@pytest.mark.parametrize("kind", FORMATS)
def test_each_topic_has_tables_of_its_own_routes(memory, tmp_path, kind):
    for name in ("air.in", "air.out"):
        memory.create_topic(name)
        keys = [f"{name[4:]}-{n % 2}".encode() for n in range(10)]
        memory.append(name, 0, Columns([b"%d" % n for n in range(10)], keys))
    target = target_in(tmp_path, kind)
    if kind == "iceberg":
        target = replace(target, table="lake.t_{topic}_{route}")
    else:
        target = replace(target, path=f"{target.path}/{{topic}}/{{route}}")
    made, told = job(target, r"air\..*", commit_rows=7, route_by="key")
    made.run()
    assert sorted((each.topic, each.rows) for each in told) == [("air.in", 10), ("air.out", 10)]
    for name in ("air.in", "air.out"):
        for odd in range(2):
            route = f"{name[4:]}{'_' if kind == 'iceberg' else '-'}{odd}"
            its = settings_of(made.settings, name).target.of_route(route)
            assert places(read_table(its)) == [(0, n) for n in range(odd, 10, 2)]
    again, _ = job(target, r"air\..*", route_by="key")
    again.run()
    assert [each.rows for each in again.metrics] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["--to", "delta", "--path", "x/{route}", "--route-by", "key"],
            "as in --path lake/{topic}",
        ),
        (["--to", "iceberg", "--table", "l.t"], "needs a name such as lake.{topic}"),
        (["--to", "delta", "--path", "x", "--topics-pattern", "a("], "not a regular expression"),
    ],
)
def test_what_is_wrong_with_a_pattern_is_said_before_spark_starts(arguments, problem):
    from typer.testing import CliRunner

    from lakemq.spark_plugin.cli.commands import export_app

    answer = CliRunner().invoke(export_app, ["--topics-pattern", "a", *arguments])
    assert answer.exit_code == 2
    assert problem in answer.stderr


def test_a_topic_that_fails_does_not_stop_the_others(memory, tmp_path):
    target = target_in(tmp_path, "delta")
    for name in ("a", "b", "c"):
        fill(memory, name)
    job(target, ".")[0].run()
    for name in ("a", "b", "c"):
        memory.append(name, 0, Columns([b"x"] * 5))
    memory.truncate_front("b", 0, 15)
    made, _ = job(target, ".")
    with pytest.raises(DataLossError, match="b-0: offsets 10 to 14 are gone"):
        made.run()
    assert {each.topic: (each.rows, each.failures) for each in made.metrics} == {
        "a": (5, 0),
        "b": (0, 1),
        "c": (5, 0),
    }


def test_topics_that_come_later_join_a_job_that_goes_on(memory, tmp_path, monkeypatch):
    target = target_in(tmp_path, "parquet")
    fill(memory, "a")
    made, told = job(target, ".", trigger_s=60)
    waits = []

    def wait(_):
        waits.append(len(told))
        if len(waits) == 2:
            fill(memory, "b")
        if len(waits) == 4:
            made.stop.set()

    monkeypatch.setattr(made.stop, "wait", wait)
    made.run()
    assert [(each.topic, each.rows) for each in told] == [("a", 20), ("b", 20)]


@pytest.mark.parametrize("trigger_s", [None, 60.0])
def test_a_topic_that_wants_another_one_s_table_is_left_out(
    memory, tmp_path, monkeypatch, caplog, trigger_s
):
    """A client that may create topics must not stop an export, nor get its table."""
    together = replace(target_in(tmp_path, "iceberg"), table="lake.{topic}")
    for name in ("a_b", "c"):
        fill(memory, name)
    job(together, ".*")[0].run()
    fill(memory, "a.b", 3)  # its name comes first
    memory.append("c", 0, Columns([b"more"]))
    made, _ = job(together, ".*", trigger_s=trigger_s)
    looks = []
    monkeypatch.setattr(
        made.stop, "wait", lambda _: looks.append(1) or (len(looks) == 3 and made.stop.set())
    )
    sentence = "topics a_b and a.b would both go to table lake.a_b; a.b is skipped"
    with pytest.raises(OptionError, match=sentence):
        made.run()
    assert [each for each in caplog.messages if sentence in each] == [f"a.b: {sentence}"]
    failures = {each.topic: each.failures for each in made.metrics}
    assert failures == {"a.b": 1 if trigger_s is None else len(looks), "a_b": 0, "c": 0}
    assert {each.topic: each.rows for each in made.metrics} == {"a.b": 0, "a_b": 0, "c": 1}
    assert places(read_table(settings_of(made.settings, "a_b").target)) == ALL


def test_a_topic_that_cannot_start_does_not_stop_the_others(memory, tmp_path):
    """Its table is the dead-letter table of another one."""
    target = target_in(tmp_path, "delta")
    for name in ("a", "a_dlq", "b"):
        fill(memory, name)
    made, told = job(target, ".*", format="json", value_schema="n bigint")
    with pytest.raises(OptionError, match="topics a and a_dlq would both go to table"):
        made.run()
    assert sorted(each.topic for each in told) == ["a", "b"]
    assert list(made.left_out) == ["a_dlq"]


def test_a_topic_that_is_left_out_joins_once_it_can(memory, tmp_path, monkeypatch):
    target = target_in(tmp_path, "parquet")
    fill(memory, "a")
    fill(memory, "b")
    made, told = job(target, ".", trigger_s=60)
    opened = made.open

    def fails_once(settings):
        if settings.topic == "a" and not looks:
            raise DataLossError("not now")
        return opened(settings)

    looks = []
    made.open = fails_once
    monkeypatch.setattr(
        made.stop, "wait", lambda _: looks.append(1) or (len(looks) == 4 and made.stop.set())
    )
    made.run()
    assert sorted((each.topic, each.rows) for each in told) == [("a", 20), ("b", 20)]
    assert {each.topic: each.failures for each in made.metrics} == {"a": 1, "b": 0}


def test_tables_and_patterns_that_cannot_be(memory, tmp_path):
    target = target_in(tmp_path, "iceberg")
    fill(memory, "a.b")
    fill(memory, "a_b")
    with pytest.raises(OptionError, match=r"needs a name such as lake.\{topic\}"):
        job(target, ".*")[0].run()
    together = Target("iceberg", table="lake.{topic}", catalog=target.catalog)
    with pytest.raises(OptionError, match="matches nix"):
        job(together, "nix")[0].run()
    with pytest.raises(OptionError, match="not a regular expression"):
        matching("(", [])


# -- bounds


def test_an_export_ends_before_an_offset_and_another_goes_on_from_there(memory, tmp_path):
    target = target_in(tmp_path, "delta")
    fill(memory, "t")

    def run(export_id, **settings):
        exporter = make_exporter(
            ExportSettings("memory", "t", target, export_id, **settings), run_here
        )
        exporter.start()
        rows = sum(report.rows for report in iter(exporter.step, None))
        exporter.close()
        return rows

    bound = '{"0": 4, "1": 7}'
    assert run("backfill", as_of=bound, commit_rows=3) == 11
    assert run("live", start=bound) == 9
    assert places(read_table(target)) == ALL
    memory.append("t", 0, Columns([b"x"]))
    assert run("backfill", as_of=bound) == 0
    assert run("live", start="earliest") == 1, "an export that began goes on where it stands"
    assert run("newest", start="latest") == 0
    memory.append("t", 1, Columns([b"x"]))
    assert run("newest", start="latest") == 1
    with pytest.raises(OptionError, match="--from-offset: t-0 ends at offset 11"):
        run("far", start="12")


@pytest.mark.parametrize("text", ["x", "{}", "[1]", '{"a": 1}', '{"0": -1}', '{"0": true}', "-5"])
def test_what_is_no_bound_says_so(text):
    with pytest.raises(OptionError, match="--as-of-offset is"):
        ExportSettings("b", "t", Target("delta", "x"), "e", as_of=text)


def test_bounds_only_ever_take_away():
    assert parse_bound("o", "5") == 5
    assert bounded({0: 3, 1: 9}, 5) == {0: 3, 1: 5}
    assert bounded({0: 3, 1: 9}, parse_bound("o", '{"1": 2, "7": 1}')) == {0: 3, 1: 2}


# -- metrics


def test_metrics_are_read_by_opentelemetry_and_by_prometheus():
    reader = InMemoryMetricReader()
    exports = []
    observe(exports, MeterProvider([reader], shutdown_on_exit=False).get_meter("m"))
    port = serve(exports, "127.0.0.1:0")
    exports.append(ExportMetrics("t", "e", rows=5, lag=3, commit_s=0.5))
    data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    found = {each.name: each.data.data_points[0] for each in data}
    assert found["lakemq.export.rows"].value == 5
    assert found["lakemq.export.lag"].value == 3
    assert dict(found["lakemq.export.commit"].attributes) == {"topic": "t", "export": "e"}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        text = page.read().decode()
    assert re.search(r'^lakemq_export_rows_total\{.*topic="t".*\} 5', text, re.MULTILINE)
    assert re.search(r"^lakemq_export_lag\{.*\} 3", text, re.MULTILINE)
    with pytest.raises(OptionError, match="takes host:port"):
        serve(exports, "here")


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_running_export_has_a_status_page():
    exports = [ExportMetrics("<t>", "e", rows=5000, lag=3, last_commit_s=1.0)]
    port = serve(exports, "127.0.0.1:0")
    code, text = get(port, "/")
    assert code == 200 and "<td>&lt;t&gt;<td>e<td>5,000<td>3" in text and "s ago" in text
    (found,) = json.loads(get(port, "/status")[1])
    assert (found["topic"], found["rows"], found["error"]) == ("<t>", 5000, None)
    assert get(port, "/healthz") == (200, "ok\n")
    exports[0].error = "the broker is away"
    assert get(port, "/healthz") == (503, "<t>: the broker is away\n")
    assert get(port, "/status/x")[0] == 404


# -- access


def test_secrets_are_not_shown(monkeypatch):
    monkeypatch.setenv("LAKEMQ_PASSWORD", "p")
    access = parse_access({"token": "s3cret", "tls": "true"})
    assert access == Access(tls=True, token="s3cret")
    assert "s3cret" not in repr(access)
    assert Access.from_json(access.to_json()) == access
    assert Access.from_json(Access().to_json()) == Access()
    access = access_of(BrokerOptions(username="u", tls_cert="c", tls_key="k"))
    assert access == Access(True, "", "c", "k", username="u", password="p")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tls": "yes"}, "takes true or false"),
        ({"tls": "false", "tls.ca": "x"}, "tls.ca is for TLS, and tls is false"),
        ({"tls.cert": "x"}, "tls.cert and tls.key come together"),
        ({"token": "t", "username": "u", "password": "p"}, "not both"),
        ({"username": "u"}, "come together"),
    ],
)
def test_access_that_cannot_be(options, problem):
    with pytest.raises(OptionError, match=problem):
        parse_access(options)
