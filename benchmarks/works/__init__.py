"""The works that are measured, each declared once."""

from __future__ import annotations

from benchmarks.works import growth, journal, limits, meta, mqtt, native, spark

WORKS = (*mqtt.WORKS, *native.WORKS, *journal.WORKS, *spark.WORKS, *meta.WORKS, *limits.WORKS)
GROWTHS = growth.GROWTHS
