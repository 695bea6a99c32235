"""Lag of streaming queries by partition, and errors without a traceback."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.notebook.lag import lag_of
from lakemq.spark_plugin.notebook.listener import LagListener
from lakemq.spark_plugin.plain_errors import plainly
from lakemq.spark_plugin.source.offsets import TopicCursor, cursor_to_json


def cursor(topic_id="1", **offsets):
    numbers = {int(name[1:]): offset for name, offset in offsets.items()}
    return json.dumps(cursor_to_json({"t": TopicCursor(topic_id, numbers)}))


@pytest.mark.parametrize(
    ("end", "latest", "lag"),
    [
        (cursor(p0=5, p1=7), cursor(p0=9, p1=7), {("t", 0): 4, ("t", 1): 0}),
        (cursor(p0=5), cursor(p0=5, p1=3), {("t", 0): 0, ("t", 1): 3}),
        (None, cursor(p0=4), {("t", 0): 4}),
        (cursor(p0=500), cursor(topic_id="2", p0=4), {("t", 0): 4}),
        (cursor(p0=5), cursor(p0=4), {("t", 0): 0}),
        (cursor(p0=5), None, {}),
        ("7", "8", {}),
        ('{"logOffset": 1}', "{", {}),
    ],
    ids=["behind", "new partition", "first", "created again", "older", "none", "rate", "other"],
)
def test_lag_is_what_the_topic_has_beyond_the_query(end, latest, lag):
    assert lag_of([(end, latest)]) == lag


def test_listener_forgets_queries_that_ended():
    listener = LagListener()
    source = SimpleNamespace(endOffset=cursor(p0=1), latestOffset=cursor(p0=3))
    for number, name in ((1, "named"), (2, None)):
        progress = SimpleNamespace(id=number, name=name, sources=[source])
        listener.onQueryProgress(SimpleNamespace(progress=progress))
    assert listener.lag == {"named": {("t", 0): 2}, "2": {("t", 0): 2}}
    (first, _) = listener._observe(None)
    assert first.value == 2
    assert first.attributes == {"query": "named", "topic": "t", "partition": 0}
    listener.onQueryTerminated(SimpleNamespace(id=1))
    assert list(listener.lag) == ["2"]


def test_errors_of_ours_have_no_traceback_and_others_do(monkeypatch):
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)

    @plainly
    def call(error):
        """Says why."""
        if error is not None:
            raise error

    with pytest.raises(OptionError):
        call(OptionError("x"))
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"
    with pytest.raises(ValueError, match="y"):
        call(ValueError("y"))
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "0")  # the user's own
    with pytest.raises(OptionError):
        call(OptionError("x"))
    call(None)
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "0"
