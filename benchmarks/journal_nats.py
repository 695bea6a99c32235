"""NATS JetStream's file store on like work: 100-byte messages, stored, acknowledged, read back.

    apt-get install nats-server
    python -m benchmarks.journal_nats [--folder FOLDER]

What differs from `benchmarks.journal`: every message passes TCP and NATS' protocol, and is stored
one by one (JetStream knows no batches); and JetStream 2.9 acknowledges what is in the page cache,
fsyncing every two minutes. The client is this file: plain asyncio, no library.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import socket
import tempfile
import time
from pathlib import Path

from benchmarks.journal import VALUE, percentiles


class Client:
    """As much of the NATS protocol as this needs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._serial = 0
        self.received = 0
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, port: int) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        client = cls(reader, writer)
        await reader.readline()  # INFO
        writer.write(b'CONNECT {"verbose":false,"headers":true}\r\nSUB inbox.> 1\r\n')
        client._task = asyncio.ensure_future(client._receive())
        return client

    async def _receive(self) -> None:
        rest = b""
        while data := await self._reader.read(1 << 20):
            rest = self._take(rest + data)

    def _take(self, data: bytes) -> bytes:
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            words = data[at:end].split()
            if words[0] == b"PING":
                self._writer.write(b"PONG\r\n")
            if words[0] != b"MSG":
                at = end + 2
                continue
            size = int(words[-1])
            if len(data) < end + 4 + size:
                break
            self._answer(words[1], data[end + 2 : end + 2 + size])
            at = end + 4 + size
        return data[at:]

    def _answer(self, subject: bytes, payload: bytes) -> None:
        waiting = self._waiting.pop(subject, None)
        if waiting is None:
            self.received += 1
        elif not waiting.done():
            waiting.set_result(payload)

    def request(self, subject: str, payload: bytes) -> asyncio.Future[bytes]:
        self._serial += 1
        inbox = b"inbox.%d" % self._serial
        future = asyncio.get_running_loop().create_future()
        self._waiting[inbox] = future
        head = b"PUB %s %s %d\r\n" % (subject.encode(), inbox, len(payload))
        self._writer.write(head + payload + b"\r\n")
        return future

    async def api(self, subject: str, body: object) -> None:
        answer = json.loads(await self.request(f"$JS.API.{subject}", json.dumps(body).encode()))
        if "error" in answer:
            raise RuntimeError(answer["error"])

    def subscribe(self, subject: str) -> None:
        self._writer.write(b"SUB %s 2\r\n" % subject.encode())

    async def drain(self) -> None:
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()
        if self._task is not None:
            await self._task


async def single_records(client: Client, callers: int, each: int) -> str:
    took: list[float] = []

    async def caller() -> None:
        for _ in range(each):
            began = time.perf_counter()
            await client.request("bench", VALUE)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    rate = callers * each / (time.perf_counter() - began)
    return f"{callers} callers: {rate:.0f} messages/s in, {percentiles(took)}, not fsynced"


async def pipelined(client: Client, count: int, window: int) -> str:
    began = time.perf_counter()
    pending: list[asyncio.Future[bytes]] = []
    for _ in range(count):
        pending.append(client.request("bench", VALUE))
        if len(pending) == window:
            await client.drain()
            await asyncio.gather(*pending)
            pending = []
    await asyncio.gather(*pending)
    rate = count / (time.perf_counter() - began)
    return f"{window} in flight: {rate:.0f} messages/s in, not fsynced"


async def read_back(client: Client, count: int) -> str:
    client.subscribe("deliver")
    began = time.perf_counter()
    consumer = {"deliver_subject": "deliver", "ack_policy": "none", "deliver_policy": "all"}
    await client.api("CONSUMER.CREATE.bench", {"stream_name": "bench", "config": consumer})
    while client.received < count:  # noqa: ASYNC110 - the receiver counts, nothing else tells
        await asyncio.sleep(0.001)
    rate = count / (time.perf_counter() - began)
    return f"{rate:.0f} messages/s out to one consumer, without acks"


async def run(folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = await asyncio.create_subprocess_exec(
        "nats-server", "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(port),
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        client = await connect(port)
        stream = {"name": "bench", "subjects": ["bench"], "storage": "file"}
        await client.api("STREAM.CREATE.bench", stream)
        print("    " + await single_records(client, 256, 200), flush=True)
        print("    " + await pipelined(client, 200_000, 4096), flush=True)
        print("    " + await read_back(client, 251_200), flush=True)
        await client.close()
    finally:
        server.terminate()
        await server.wait()


async def connect(port: int) -> Client:
    for _ in range(100):
        try:
            return await Client.connect(port)
        except OSError:
            await asyncio.sleep(0.1)
    raise TimeoutError("nats-server does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure")
    folder = Path(tempfile.mkdtemp(prefix="nats-bench-", dir=parser.parse_args().folder))
    print("NATS JetStream, file storage")
    try:
        asyncio.run(run(folder))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
