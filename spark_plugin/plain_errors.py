"""Errors of ours without a Python traceback in what Spark says of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from lakemq.plugins.native.sdk import LakeMQError
from lakemq.spark_plugin.errors import SparkPluginError

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""What pyspark looks at when it sends an error of a Python worker to the JVM."""
P = ParamSpec("P")
T = TypeVar("T")
_hidden: list[str] = []


def plainly(call: Callable[P, T]) -> Callable[P, T]:
    """`call`, whose errors of ours reach the user as one sentence; all others keep their
    traceback."""

    @wraps(call)
    def wrapped(*arguments: P.args, **named: P.kwargs) -> T:
        if _hidden:  # the worker is used again
            os.environ.pop(_hidden.pop(), None)
        try:
            return call(*arguments, **named)
        except (SparkPluginError, LakeMQError):
            if _HIDE not in os.environ:
                os.environ[_HIDE] = "1"
                _hidden.append(_HIDE)
            raise

    return wrapped
