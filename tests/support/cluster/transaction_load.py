"""Transactional producers and a reader that go on while nodes are harmed."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress

import lakemq
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.transactions.types import TRANSACTION
from lakemq.testing import Cluster
from tests.support.cluster.async_thread import AsyncThread
from tests.support.cluster.load import until
from tests.support.history import OPEN, History, Read, Send


class Writer(AsyncThread):
    """Transactions of one id, or batches of one sink, in a thread of its own."""

    def __init__(self, load: Transactions, name: str, bootstrap: str) -> None:
        self.name = name
        self.ended = 0
        """Transactions whose end is known."""
        self.sequence = 0
        self._load, self._bootstrap = load, bootstrap
        super().__init__()

    async def work(self) -> None:
        load = self._load
        async with lakemq.Client(self._bootstrap, timeout_s=100) as client:
            while not load.stopping.is_set():
                await self._transactions(client)

    async def _transactions(self, client: lakemq.Client) -> None:
        """Until one has an end that only a new producer knows."""
        load = self._load
        producer = await client.transactional_producer(self.name)
        while not load.stopping.is_set():
            transaction = producer.transaction()
            name = f"{self.name}/{transaction.batch_id}/{producer.session.epoch}"
            began_s = time.monotonic()
            committed = False
            try:
                for number in range(load.partitions):
                    value = f"{name}/{number}"
                    await transaction.send(load.topic, value.encode(), partition=number)
                await transaction.commit()
                committed = True
            except lakemq.OutcomeUnknown:
                session = await client.staging.open(TRANSACTION, self.name)
                committed = session.last_batch_id >= transaction.batch_id
            except LakeMQError:
                with suppress(LakeMQError):
                    await transaction.abort()
            load.note(self, name, began_s, committed)
            if not committed:
                return


class Transactions:
    """What writers were told, and a reader."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int) -> None:
        """`partitions`: of the topic, to each of which a transaction writes."""
        self.topic, self.partitions = topic, partitions
        self.cluster = cluster
        self.stopping = threading.Event()
        self.history = History()
        self.committed = 0
        self._lock = threading.Lock()
        addresses = [cluster.address(name) for name in cluster.names]
        self.writers = [
            Writer(self, f"{topic}-{first}", ",".join(addresses[first:] + addresses[:first]))
            for first in range(len(addresses))
        ]
        self.reader_error: BaseException | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def note(self, writer: Writer, name: str, began_s: float, committed: bool) -> None:
        with self._lock:
            self.history.transactions[name] = committed
            self.committed += committed
            ended_s = time.monotonic()
            for number in range(self.partitions):
                writer.sequence += 1
                self.history.sends.append(
                    Send(
                        str(number), writer.name, writer.sequence, f"{name}/{number}", began_s,
                        ended_s, OPEN, name,
                    )
                )  # fmt: skip

    def _read(self) -> None:
        try:
            asyncio.run(self._follow())
        except BaseException as error:
            self.reader_error = error

    async def _follow(self) -> None:
        async with lakemq.Client(self.cluster.bootstrap, timeout_s=100) as client:
            readers = [
                asyncio.create_task(self._follow_one(client, n)) for n in range(self.partitions)
            ]
            while not self.stopping.is_set():
                await asyncio.sleep(0.1)
                for each in readers:
                    if each.done():
                        each.result()
            for each in readers:
                each.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _follow_one(self, client: lakemq.Client, partition: int) -> None:
        following = 0
        while True:
            with suppress(lakemq.Unavailable):
                async for record in client.consume(
                    self.topic, partition=partition, start=following, follow=True
                ):
                    now_s = time.monotonic()
                    value = (record.value or b"").decode()
                    with self._lock:
                        self.history.reads.append(
                            Read(
                                str(partition), f"reader-{partition}", now_s, now_s, record.offset,
                                ((record.offset, value),), record.offset + 1,
                            )
                        )  # fmt: skip
                    following = record.offset + 1
            await asyncio.sleep(0.1)

    def until_committed(self, more: int, timeout_s: float = 60.0) -> float:
        """Seconds until so many more of each writer were."""
        began = time.monotonic()
        counts = self.counts()
        until(
            lambda: (
                all(now >= then + more for now, then in zip(self.counts(), counts, strict=True))
                or any(each.error for each in self.writers)
            ),
            timeout_s,
        )
        self.check()
        return time.monotonic() - began

    def counts(self) -> list[int]:
        """Committed transactions by writer."""
        with self._lock:
            done = [name for name, committed in self.history.transactions.items() if committed]
        return [
            sum(name.startswith(each.name + "/") for name in done) for each in self.writers
        ]  # fmt: skip

    def check(self) -> None:
        errors = [each.error for each in self.writers if each.error is not None]
        assert not errors, errors
        assert self.reader_error is None

    def stop(self) -> None:
        self.stopping.set()
        for each in self.writers:
            each.thread.join(60)
            assert not each.thread.is_alive(), "a writer did not end"
        self._reader.join(60)
        self.check()

    def judge(self) -> int:
        """Raises AssertionError with what must not be; how many records are stored."""
        final = {
            str(place.partition): [(seen.offset, (seen.value or b"").decode()) for seen in records]
            for place, records in self.cluster.stored(self.topic).items()
        }
        # Two ids that commit at one time may come in another order in another partition (G0), as in
        # Kafka: a commit takes effect partition by partition.
        found = [each for each in self.history.anomalies(final) if each.kind != "G0"]
        assert found == [], "\n".join(map(str, found[:20]))
        return sum(map(len, final.values()))
