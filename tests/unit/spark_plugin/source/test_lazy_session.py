"""Spark starts when it is needed, once, and not at all for who has stopped."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading

import pytest

from lakemq.spark_plugin.errors import ExportError
from lakemq.spark_plugin.lazy_session import LazySpark
from lakemq.spark_plugin.session import _apart_from_sigterm


class Session:
    stopped = 0

    def stop(self):
        self.stopped += 1
        raise ConnectionRefusedError("the JVM is gone")


def lazy(stop, started):
    def start():
        started.append(Session())
        return started[-1]

    return LazySpark(start, contextlib.nullcontext, stop)


def test_starts_once_and_stops_once():
    started = []
    spark = lazy(threading.Event(), started)
    spark.close()
    assert not spark.is_started and started == []
    assert spark.get() is spark.get() is started[0]
    assert spark.is_started and len(started) == 1
    spark.close()
    assert started[0].stopped == 1


def test_who_stopped_gets_no_session():
    stop, started = threading.Event(), []
    stop.set()
    with pytest.raises(ExportError, match="stopped before the Spark job began"):
        lazy(stop, started).get()
    assert started == []


@pytest.mark.parametrize("apart", [True, False])
def test_jvm_ignores_sigterm_and_other_children_do_not(apart):
    """As pyspark starts its JVM: a program with a `preexec_fn`."""
    look = "import signal; print(signal.getsignal(signal.SIGTERM).name)"
    guard = _apart_from_sigterm() if apart else contextlib.nullcontext()
    with guard:
        found = subprocess.run(
            [sys.executable, "-c", look],
            preexec_fn=lambda: None, capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert found.stdout.strip() == ("SIG_IGN" if apart else "SIG_DFL")
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
