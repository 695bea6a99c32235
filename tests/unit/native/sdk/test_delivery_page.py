"""Goal: the defaults of docs/delivery.md are those of the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lakemq.broker_core.api.queues.types import QueueSettings
from lakemq.broker_core.configuration.settings import TransactionSettings
from lakemq.plugins.native.sdk.blocking.client import connect
from lakemq.plugins.native.sdk.client.client import Client
from lakemq.plugins.native.sdk.consumer.consumer import Consumer

PAGE = Path(__file__).parents[4] / "docs" / "delivery.md"


def default(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def test_each_time_out_has_its_default() -> None:
    section = PAGE.read_text().split("## Time-outs")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)`.* \| (?:(\d+) s|none) \|", section, re.MULTILINE)
    told = {(of, name): int(seconds) * 1000 if seconds else None for name, of, seconds in rows}
    queue, transactions = QueueSettings(), TransactionSettings()
    consumer = {
        name: default(Consumer.__init__, name)
        for name in ("session_timeout_ms", "rebalance_timeout_ms", "auto_commit_interval_ms",
                     "pattern_interval_ms")
    }  # fmt: skip
    assert told == {
        ("connect", "timeout_s"): default(connect, "timeout_s") * 1000,
        ("poll", "timeout_s"): default(Consumer.poll, "timeout_s"),
        **{("producer", name): default(Client.producer, name)
           for name in ("delivery_timeout_ms", "linger_ms")},
        **{("subscribe", name): value for name, value in consumer.items()},
        ("transactional_producer", "timeout_ms"): transactions.transaction_timeout_ms,
        ("staging", "timeout_ms"): transactions.sink_timeout_ms,
        **{("queue", name): getattr(queue, name)
           for name in ("lock_ms", "backoff_ms", "backoff_ms_max")},
    }  # fmt: skip
    assert default(connect, "timeout_s") == default(Client.__init__, "timeout_s")
