"""Generator processes that start together, and what they tell."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Any

from benchmarks.harness.declare import Running, Sample
from benchmarks.harness.processes import FORK, cpu_s
from benchmarks.harness.statistics import Latencies
from benchmarks.load import publishers, subscribers
from benchmarks.load.packets import Load

ANSWER_S = 90.0


class Crew:
    """Processes that each run `target(*arguments, pipe)`."""

    def __init__(self) -> None:
        self._members: list[tuple[Any, Pipe]] = []

    def start(self, target: Callable[..., None], *arguments: Any) -> Pipe:
        ours, theirs = FORK.Pipe()
        process = FORK.Process(target=target, args=(*arguments, theirs), daemon=True)
        process.start()
        theirs.close()
        self._members.append((process, ours))
        return ours

    def kill(self) -> None:
        """kill -9 of all of them."""
        for process, _ in self._members:
            process.kill()
            process.join()

    def end(self) -> None:
        for process, pipe in self._members:
            pipe.close()
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


@contextlib.contextmanager
def crew() -> Iterator[Crew]:
    members = Crew()
    try:
        yield members
    finally:
        members.end()


def told(pipe: Pipe) -> Any:
    """What a process says next. Raises RuntimeError when it ended or says nothing."""
    if not pipe.poll(ANSWER_S):
        raise RuntimeError(f"a load generator said nothing for {ANSWER_S:.0f} s")
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        raise RuntimeError("a load generator ended; its words are above") from None


def ready(pipes: Sequence[Pipe]) -> None:
    for pipe in pipes:
        assert told(pipe) == "ready"


def go(pipes: Sequence[Pipe]) -> None:
    for pipe in pipes:
        pipe.send("go")


def busiest(answers: Sequence[dict[str, Any]], elapsed_s: float) -> float:
    return max(100 * each["cpu_s"] / elapsed_s for each in answers)


def flood(side: Running, load: Load, seconds: float) -> Sample:
    """QoS 0 as fast as it goes: deliveries a second until the last byte has come."""
    with crew() as members:
        reader = members.start(subscribers.count_bytes, side.port, load)
        ready([reader])
        sender = members.start(publishers.flood, side.port, load, seconds)
        ready([sender])
        before = cpu_s(side.pids)
        go([reader, sender])
        sent = told(sender)
        reader.send(sent["bytes"])
        got = told(reader)
        sender.send("end")
    used = cpu_s(side.pids) - before
    elapsed = max(sent["elapsed_s"], got["last"] - sent["began"])
    share = got["bytes"] / (sent["bytes"] * load.subscribers)
    delivered = share * sent["count"] * load.subscribers
    return {
        "rate": delivered / elapsed,
        "cpu_us": 1e6 * used / max(1.0, delivered),
        "delivered_pct": 100 * share,
        "generator_pct": busiest((sent, got), elapsed),
    }


def windows(side: Running, load: Load, seconds: float) -> Sample:
    """QoS 1 or 2: publishes a second that were acknowledged, with or without subscribers."""
    with crew() as members:
        sender = members.start(publishers.windows, side.port, load, seconds)
        readers = []
        if load.subscribers:
            readers.append(members.start(subscribers.receive, side.port, load))
        ready([sender, *readers])
        before = cpu_s(side.pids)
        go([sender, *readers])
        sent = told(sender)
        sample = {"rate": sent["count"] / sent["elapsed_s"]}
        answers = [sent]
        for reader in readers:
            reader.send(sent["count"] * shared_by(load))
            answers.append(told(reader))
            sample["delivered_pct"] = min(
                100.0, 100 * answers[-1]["count"] / max(1, sent["count"] * shared_by(load))
            )
    sample["cpu_us"] = 1e6 * (cpu_s(side.pids) - before) / max(1, sent["count"])
    return {**sample, "generator_pct": busiest(answers, sent["elapsed_s"])}


def shared_by(load: Load) -> int:
    """Deliveries of a publish: one for each subscriber, or one in all of a shared group."""
    return 1 if load.filter.startswith("$share/") else load.subscribers


def paced(side: Running, load: Load, seconds: float) -> Sample:
    """Publishes at a fixed rate: latency from when a publish was due to its delivery."""
    with crew() as members:
        reader = members.start(subscribers.receive, side.port, load)
        sender = members.start(publishers.paced, side.port, load, seconds)
        ready([reader, sender])
        before = cpu_s(side.pids)
        go([reader, sender])
        sent = told(sender)
        reader.send(sent["count"] * shared_by(load))
        got = told(reader)
        sender.send("end")
        used = cpu_s(side.pids) - before
    wanted = sent["count"] * shared_by(load)
    return {
        "rate": sent["count"] / sent["elapsed_s"],
        "cpu_us": 1e6 * used / sent["count"],
        **Latencies(got["latencies"]).figures(),
        "delivered_pct": 100 * got["count"] / wanted,
        "generator_pct": busiest((sent, got), sent["elapsed_s"]),
    }
