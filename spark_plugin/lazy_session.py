"""Spark, started when it is needed: what a broker or a table refuses is told before, and an export
that is caught up needs none."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from lakemq.spark_plugin.errors import ExportError

if TYPE_CHECKING:
    from lakemq.spark_plugin.session import Spark

Starting = Callable[[], contextlib.AbstractContextManager[object]]


class LazySpark:
    """Starts one Spark for all threads."""

    def __init__(
        self, start: Callable[[], Spark], starting: Starting, stop: threading.Event
    ) -> None:
        """`starting` shows that Spark starts; once `stop` is set none is given."""
        self._start = start
        self._starting = starting
        self._stop = stop
        self._lock = threading.Lock()
        self._spark: Spark | None = None

    @property
    def is_started(self) -> bool:
        """Whether there is one."""
        return self._spark is not None

    def get(self) -> Spark:
        """Spark. ExportError if the export was stopped before it was there."""
        with self._lock:
            if self._spark is None and not self._stop.is_set():
                with self._starting():
                    self._spark = self._start()
            if self._spark is None or self._stop.is_set():
                raise ExportError("stopped before the Spark job began")
            return self._spark

    def close(self) -> None:
        """Stop it, if there is one; its JVM may be gone."""
        from py4j.protocol import Py4JError

        if self._spark is not None:
            with contextlib.suppress(OSError, Py4JError):
                self._spark.stop()
