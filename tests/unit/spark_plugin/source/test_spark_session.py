"""What is missing for Spark is said in one sentence; importing the commands imports no Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lakemq.spark_plugin import session
from lakemq.spark_plugin.errors import ExportError, MissingDependency, TopicRecreated
from lakemq.spark_plugin.export.job.spark_tasks import error_of_task


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingDependency, match=r"pyspark is missing: pip install 'lakemq\[spark\]'"
    ):
        session.check_installed()


@pytest.mark.parametrize(
    ("version", "problem"),
    [(None, "and there is none: install a JRE"), (11, "this is Java 11. Set JAVA_HOME")],
)
def test_a_java_that_will_not_do_is_explained(monkeypatch, version, problem):
    monkeypatch.setattr(session, "_java_version", lambda: version)
    with pytest.raises(MissingDependency, match=problem):
        session.check_installed()


def test_the_commands_are_light():
    code = (
        "import sys, lakemq.spark_plugin.cli.commands; "
        "print([m for m in ('pyspark', 'pyarrow', 'deltalake', 'pyiceberg') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_an_error_of_a_task_is_found_in_what_spark_says():
    said = (
        "Job aborted.\nTraceback (most recent call last):\n"
        "lakemq.broker_core.api.errors.UnknownTopic: no topic t\n\nThe above exception was ...\n"
        "lakemq.spark_plugin.errors.TopicRecreated: topic t was created anew\n\n"
        "\tat org.apache.spark"
    )
    found = error_of_task(said)
    assert type(found) is TopicRecreated and str(found) == "topic t was created anew"
    found = error_of_task("x\nbroker_core.api.errors.CorruptLog: bad bytes\n")
    assert type(found) is ExportError and str(found) == "bad bytes"
    assert str(error_of_task("boom")) == "the Spark job failed: boom"
