"""The live reader: counts what arrives, on the native SDK, while the devices publish."""

from __future__ import annotations

import json
import threading
from types import TracebackType
from typing import Self

import lakemq
from examples.air_quality.readings import TOPIC


class Tail:
    """`with Tail(address, topic) as tail: tail.seen`. Reads on a thread of its own."""

    def __init__(self, address: str, topic: str) -> None:
        self.seen = 0
        """Records that have arrived."""
        self.latest = ""
        """What arrived last, for the eye."""
        self.failure: lakemq.LakeMQError | None = None
        self._client = lakemq.connect(address)
        self._topic = topic
        self._stop: list[object] = []
        self._thread = threading.Thread(target=self._read, name="tail", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.append("enough")
        self._thread.join(timeout=10)
        self._client.close()

    def _read(self) -> None:
        try:
            records = self._client.consume(
                self._topic, start="earliest", follow=True, stop=self._stop
            )
            for record in records:
                self.seen += 1
                if self.seen % 500 == 0:
                    self.latest = _line(record)
        except lakemq.LakeMQError as error:
            self.failure = error


def _line(record: lakemq.Record) -> str:
    sensor = (record.key or b"").decode().removeprefix(f"{TOPIC}/")
    return f"{sensor} {json.loads(record.value or b'{}').get('value')}"
