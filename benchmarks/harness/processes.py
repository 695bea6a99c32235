"""CPU time and memory of processes, and processes that measure themselves."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # has no types of its own

from benchmarks.harness.declare import Missing, Running, Sample

FORK = get_context("forkserver")
"""Generators are forked from a process that has their modules, not started anew each time."""
FORK.set_forkserver_preload(["benchmarks.load.publishers", "benchmarks.load.subscribers"])
SPAWN = get_context("spawn")
START_S = 60.0
STOP_S = 30.0


def tree(pids: Sequence[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            yield process
            yield from process.children(recursive=True)


def cpu_s(pids: Sequence[int]) -> float:
    """User and system time so far of processes and their children."""
    total = 0.0
    for process in tree(pids):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def rss_mb(pids: Sequence[int], peak: bool = True) -> float:
    """The most memory (or what now) that processes and their children have resident (MB)."""
    field = "VmHWM:" if peak else "VmRSS:"
    kib = 0
    for process in tree(pids):
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            kib += int(next(line for line in lines if line.startswith(field)).split()[1])
    return kib * 1024 / 1e6


def wait_for(port: int, process: subprocess.Popen[Any]) -> None:
    """Until it listens. Raises Missing when it ended or does not."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise Missing(f"{Path(str(process.args[0])).name} did not start")  # type: ignore[index]


def end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def program(command: Sequence[str], port: int, log: Path) -> Iterator[int]:
    """A server that listens on `port` when it is ready; yields its pid. Raises Missing."""
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        wait_for(port, process)
        yield process.pid
    finally:
        end(process)


def _serve(opened: Callable[..., Any], arguments: tuple[Any, ...], pipe: Pipe) -> None:
    """In the child: `opened(*arguments)` is a context manager of what answers each request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with opened(*arguments) as answer:
            pipe.send("ready")
            while (request := pipe.recv()) is not None:
                pipe.send(answer(*request))
    except EOFError:
        pass
    except Missing as error:
        pipe.send(error)


@contextlib.contextmanager
def _modules_of(tree: Path) -> Iterator[None]:
    """Processes that are spawned meanwhile find all modules there."""
    sys.path.insert(0, str(tree))
    try:
        yield
    finally:
        sys.path.remove(str(tree))


@contextlib.contextmanager
def measuring_itself(
    opened: Callable[..., Any], *arguments: Any, tree: Path | None = None
) -> Iterator[Running]:
    """`opened` in a process of its own, whose CPU and memory are its side's. Raises Missing.
    `tree`: another copy of this checkout, to run that."""
    ours, theirs = FORK.Pipe()
    if tree is None:
        process: Any = FORK.Process(target=_serve, args=(opened, arguments, theirs))
        process.start()
    else:
        process = SPAWN.Process(target=_serve, args=(opened, arguments, theirs))
        with _modules_of(tree):
            process.start()
    theirs.close()

    def receive() -> Any:
        try:
            told = ours.recv()
        except EOFError:
            process.join()
            raise RuntimeError(f"the measuring process ended with {process.exitcode}") from None
        if isinstance(told, Missing):
            raise told
        return told

    def ask(*request: Any) -> Sample:
        ours.send(request)
        return dict(receive())

    try:
        receive()
        assert process.pid is not None
        yield Running(pids=(process.pid,), ask=ask)
    finally:
        with contextlib.suppress(OSError):
            ours.send(None)
        process.join(STOP_S)
        if process.is_alive():
            process.kill()
            process.join()


def asked(side: Running, seconds: float) -> Sample:
    """The measure of sides that measure themselves."""
    assert side.ask is not None
    return side.ask(seconds)
