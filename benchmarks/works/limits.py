"""What sockets, the disk and gRPC allow by themselves: to be set beside the figures."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import grpc

from benchmarks.harness.declare import Running, Sample, Side, Work
from benchmarks.harness.processes import asked, measuring_itself
from benchmarks.load import journal
from benchmarks.load.packets import Load
from benchmarks.load.publishers import flood_chunk
from benchmarks.works.journal import apart
from lakemq.runtime import loop_factory

Answer = Callable[[float], Sample]
OUTSTANDING = 64


@contextlib.contextmanager
def sockets() -> Iterator[Answer]:
    """The bytes of QoS 0 publishes through one relay that looks at nothing."""
    yield lambda seconds: journal.with_cpu(lambda: relay(seconds))


def relay(seconds: float) -> Sample:
    """Two socket pairs with a relay between, all in threads of this process."""
    chunk, packets = flood_chunk(Load(names=10), 0, 1 << 20)
    (sending, taking), (giving, reading) = tcp_pair(), tcp_pair()
    got = 0

    def pass_on() -> None:
        buffer = bytearray(1 << 18)
        while size := taking.recv_into(buffer):
            giving.sendall(memoryview(buffer)[:size])
        giving.shutdown(socket.SHUT_WR)

    def read() -> None:
        nonlocal got
        buffer = bytearray(1 << 18)
        while size := reading.recv_into(buffer):
            got += size

    threads = [threading.Thread(target=each) for each in (pass_on, read)]
    for thread in threads:
        thread.start()
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        sending.sendall(chunk)
    sending.shutdown(socket.SHUT_WR)
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - began
    for sock in (sending, taking, giving, reading):
        sock.close()
    return {"count": got / len(chunk) * packets, "elapsed_s": elapsed}


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return one, other


@contextlib.contextmanager
def calls() -> Iterator[Answer]:
    """Calls of 100 bytes to a gRPC server of this process that answers nothing."""
    with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
        yield lambda seconds: journal.with_cpu(lambda: runner.run(call_for(seconds)))


async def call_for(seconds: float) -> Sample:
    async def nothing(request: bytes, _context: object) -> bytes:
        return b""

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(nothing)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("limit", {"Call": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/limit/Call")
        began, count = time.perf_counter(), 0

        async def caller() -> None:
            nonlocal count
            while time.perf_counter() < began + seconds:
                await call(bytes(100))
                count += 1

        await asyncio.gather(*(caller() for _ in range(OUTSTANDING)))
        elapsed = time.perf_counter() - began
    await server.stop(None)
    return {"count": count, "elapsed_s": elapsed}


@contextlib.contextmanager
def by_itself(_folder: Path, opened) -> Iterator[Running]:  # type: ignore[no-untyped-def]
    with measuring_itself(opened) as side:
        yield side


def machine(start) -> tuple[Side]:  # type: ignore[no-untyped-def]
    return (Side("this machine", "", start),)


WORKS = (
    Work(
        "limit-socket",
        "limits",
        "QoS 0 publishes of 50 to 200 bytes, as bytes: a sender, a relay that looks at nothing "
        "and a reader in one process.",
        machine(partial(by_itself, opened=sockets)),
        asked,
        seconds=1,
    ),
    Work(
        "limit-fdatasync",
        "limits",
        "One record after the other, written and fdatasynced.",
        machine(partial(apart, opened=journal.raw, kind="singles", count=1)),
        asked,
        seconds=1,
    ),
    Work(
        "limit-grpc",
        "limits",
        "gRPC calls of 100 bytes that do nothing, 64 at a time, client and server in one Python "
        "process.",
        machine(partial(by_itself, opened=calls)),
        asked,
        seconds=1,
    ),
)
