"""What clients of partitions saw, judged as Jepsen's Kafka workload does.

Values are unique, times of one clock and only compared, and nothing was deleted by retention or
compaction. Anomalies are named as there: lost, duplicate, never-sent, refused, reordered,
inconsistent-offset, stale-read, skipped, nonmonotonic, G0, G1a, G1b, G1c.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final, NamedTuple

OPEN: Final = -1
"""Outcome of a send that was not answered: it may be stored or not."""
REFUSED: Final = -2
"""Outcome of a send that was answered with an error that says it is not stored."""

Logs = Mapping[str, Sequence[tuple[int, str]]]
"""Partition -> (offset, value) of all that is stored at the end, in order."""


class Send(NamedTuple):
    """One record that a producer wanted stored."""

    partition: str
    producer: str
    sequence: int
    """Ascends with each record of the producer for that partition."""
    value: str
    start_s: float
    end_s: float
    """When it was answered, or given up."""
    offset: int
    """Where it is stored, as the answer said; OPEN or REFUSED."""
    transaction: str = ""


class Read(NamedTuple):
    """One answer to a reader."""

    partition: str
    reader: str
    """Each reads on from where it was, until it is named another."""
    start_s: float
    end_s: float
    start: int
    """Offset that was asked for."""
    records: tuple[tuple[int, str], ...]
    end: int
    """High watermark that the answer gave."""
    transaction: str = ""
    """That the read was part of."""


class Anomaly(NamedTuple):
    """What a history shows that must not be."""

    kind: str
    text: str


class History:
    """Operations in any order, and how transactions ended."""

    def __init__(self) -> None:
        self.sends: list[Send] = []
        self.reads: list[Read] = []
        self.transactions: dict[str, bool] = {}
        """Name -> whether it was committed; one whose end is open is not there."""

    def forget(self, kept: Container[int]) -> None:
        """Records at other offsets than `kept` may be lost by a word of an operator, who was
        warned; what readers had counts no more. For histories of one partition."""
        self.sends = [
            each if each.offset < 0 or each.offset in kept else each._replace(offset=OPEN)
            for each in self.sends
        ]
        self.reads.clear()

    def anomalies(self, final: Logs) -> list[Anomaly]:
        """`final`: what readers of committed records are given when all has come to rest."""
        found: list[Anomaly] = []
        by_value = {send.value: send for send in self.sends}
        places = sorted({*final, *(each.partition for each in (*self.sends, *self.reads))})
        for place in places:
            log = list(final.get(place, ()))
            sends = [each for each in self.sends if each.partition == place]
            reads = [each for each in self.reads if each.partition == place]
            found += _inconsistent(place, sends, reads, log)
            found += _lost(place, sends, reads, log, self.transactions)
            found += _duplicates(place, log)
            found += _never_sent(place, reads, log, by_value)
            found += _reordered(place, sends, log)
            found += _stale(place, sends, reads)
            found += _skipped(place, reads, log)
            found += _nonmonotonic(place, reads, log)
        found += _aborted(self.reads, final, by_value, self.transactions)
        found += _torn(self.sends, final, self.transactions)
        found += _cycles(self.reads, final, by_value)
        return found


# ------------------------------------------------------------ one partition


def _seen(sends: Iterable[Send], reads: Iterable[Read]) -> Iterator[tuple[int, str, str]]:
    for send in sends:
        if send.offset >= 0:
            yield send.offset, send.value, f"acknowledged to {send.producer}"
    for read in reads:
        for offset, value in read.records:
            yield offset, value, f"read by {read.reader}"


def _inconsistent(
    place: str, sends: Sequence[Send], reads: Sequence[Read], log: Sequence[tuple[int, str]]
) -> Iterator[Anomaly]:
    there: dict[int, tuple[str, str]] = {offset: (value, "stored") for offset, value in log}
    for offset, value, how in _seen(sends, reads):
        other, before = there.setdefault(offset, (value, how))
        if other != value:
            text = f"{place}: offset {offset} is {other!r} ({before}) and {value!r} ({how})"
            yield Anomaly("inconsistent-offset", text)


def _lost(
    place: str,
    sends: Sequence[Send],
    reads: Sequence[Read],
    log: Sequence[tuple[int, str]],
    transactions: Mapping[str, bool],
) -> Iterator[Anomaly]:
    there = {value for _, value in log}
    aborted = {
        send.value
        for send in sends
        if send.transaction and not transactions.get(send.transaction, False)
    }
    gone: dict[str, str] = {}
    for offset, value, how in _seen(sends, reads):
        if value not in there and value not in aborted:
            gone.setdefault(value, f"{place}: {value!r} at {offset} ({how}) is not stored")
    yield from (Anomaly("lost", text) for text in gone.values())


def _duplicates(place: str, log: Sequence[tuple[int, str]]) -> Iterator[Anomaly]:
    first: dict[str, int] = {}
    for offset, value in log:
        if first.setdefault(value, offset) != offset:
            text = f"{place}: {value!r} is stored at {first[value]} and {offset}"
            yield Anomaly("duplicate", text)


def _never_sent(
    place: str,
    reads: Sequence[Read],
    log: Sequence[tuple[int, str]],
    by_value: Mapping[str, Send],
) -> Iterator[Anomaly]:
    given = {value for read in reads for _, value in read.records} | {value for _, value in log}
    for value in sorted(given):
        send = by_value.get(value)
        if send is None or send.partition != place:
            yield Anomaly("never-sent", f"{place}: {value!r} was not sent there")
        elif send.offset == REFUSED:
            yield Anomaly("refused", f"{place}: {value!r} was refused, and is there")


def _reordered(
    place: str, sends: Sequence[Send], log: Sequence[tuple[int, str]]
) -> Iterator[Anomaly]:
    """A producer's records lie in its order; so do all, where one was answered before another was
    begun."""
    offsets = {value: offset for offset, value in log}
    stored = [send for send in sends if send.value in offsets]
    by_producer: dict[str, list[Send]] = defaultdict(list)
    for send in stored:
        by_producer[send.producer].append(send)
    for producer, own in by_producer.items():
        own.sort(key=lambda send: send.sequence)
        for one, other in pairwise(own):
            if offsets[one.value] >= offsets[other.value]:
                text = f"{place}: {other.value!r} of {producer} lies before {one.value!r}"
                yield Anomaly("reordered", text)
    # By time: the highest offset that was answered before a send began must be below its own.
    answers = sorted((send.end_s, offsets[send.value], send.value) for send in stored
                     if send.offset >= 0)  # fmt: skip
    top, next_answer = (-1, ""), 0
    for send in sorted(stored, key=lambda send: send.start_s):
        while next_answer < len(answers) and answers[next_answer][0] < send.start_s:
            top = max(top, answers[next_answer][1:])
            next_answer += 1
        if top[0] > offsets[send.value]:
            text = f"{place}: {send.value!r} was sent after the answer to {top[1]!r}, lies before"
            yield Anomaly("reordered", text)


def _stale(place: str, sends: Sequence[Send], reads: Sequence[Read]) -> Iterator[Anomaly]:
    """A read sees all that was answered, and all that any read had been given, before it began."""
    events = [(send.end_s, send.offset + 1, f"answer to {send.value!r}") for send in sends]
    events += [(read.end_s, read.end, f"read of {read.reader}") for read in reads]
    events.sort()
    top, position = (0, ""), 0
    for read in sorted(reads, key=lambda read: read.start_s):
        while position < len(events) and events[position][0] < read.start_s:
            top = max(top, events[position][1:])
            position += 1
        if read.end < top[0]:
            text = f"{place}: {read.reader} was told {read.end} after the {top[1]} told {top[0]}"
            yield Anomaly("stale-read", text)


def _skipped(
    place: str, reads: Sequence[Read], log: Sequence[tuple[int, str]]
) -> Iterator[Anomaly]:
    """An answer holds each record from where it was asked to its last one, in order."""
    stored = [offset for offset, _ in log]
    for read in reads:
        offsets = [offset for offset, _ in read.records]
        if offsets != sorted(set(offsets)) or (offsets and offsets[0] < read.start):
            yield Anomaly("reordered", f"{place}: {read.reader} was given offsets {offsets}")
        elif offsets:
            missing = {o for o in stored if read.start <= o <= offsets[-1]} - set(offsets)
            if missing:
                text = f"{place}: {read.reader} was not given offsets {sorted(missing)}"
                yield Anomaly("skipped", text)


def _nonmonotonic(
    place: str, reads: Sequence[Read], log: Sequence[tuple[int, str]]
) -> Iterator[Anomaly]:
    """Each reader goes on behind the last record that it was given."""
    at: dict[str, int] = {}
    for read in sorted(reads, key=lambda read: read.start_s):
        due = at.get(read.reader, read.start)
        if read.start < due:
            text = f"{place}: {read.reader} reads at {read.start} after it was at {due}"
            yield Anomaly("nonmonotonic", text)
        elif any(due <= offset < read.start for offset, _ in log):
            text = f"{place}: {read.reader} goes on at {read.start} from {due}"
            yield Anomaly("skipped", text)
        at[read.reader] = max(read.start, *(offset + 1 for offset, _ in read.records), 0)


# ------------------------------------------------------------ transactions


def _aborted(
    reads: Sequence[Read],
    final: Logs,
    by_value: Mapping[str, Send],
    transactions: Mapping[str, bool],
) -> Iterator[Anomaly]:
    """G1a: what a transaction wrote that was aborted is given to nobody."""
    given = {value for read in reads for _, value in read.records}
    given |= {value for log in final.values() for _, value in log}
    for value in sorted(given):
        send = by_value.get(value)
        if send is not None and transactions.get(send.transaction) is False:
            yield Anomaly("G1a", f"{value!r} of {send.transaction} is read, which was aborted")


def _torn(
    sends: Sequence[Send], final: Logs, transactions: Mapping[str, bool]
) -> Iterator[Anomaly]:
    """G1b: of a transaction all is there, or nothing."""
    there = {value for log in final.values() for _, value in log}
    written: dict[str, list[Send]] = defaultdict(list)
    for send in sends:
        if send.transaction and send.offset != REFUSED:
            written[send.transaction].append(send)
    for name, own in written.items():
        missing = [send.value for send in own if send.value not in there]
        if missing and (transactions.get(name, False) or len(missing) < len(own)):
            yield Anomaly("G1b", f"of {name} {missing} are missing, of {len(own)} records")


def _cycles(reads: Sequence[Read], final: Logs, by_value: Mapping[str, Send]) -> Iterator[Anomaly]:
    """G0: transactions whose records lie in another order here than there. G1c: the same with what
    they read of each other."""
    before: dict[str, set[str]] = defaultdict(set)
    for log in final.values():
        writers = [by_value[value].transaction for _, value in log if value in by_value]
        for one, other in pairwise([name for name in writers if name]):
            if one != other:
                before[other].add(one)
    cycle = _cycle(before)
    if cycle:
        yield Anomaly("G0", f"written before each other: {' < '.join(cycle)}")
        return
    for read in reads:
        for _, value in read.records:
            writer = by_value[value].transaction if value in by_value else ""
            if writer and read.transaction and writer != read.transaction:
                before[read.transaction].add(writer)
    cycle = _cycle(before)
    if cycle:
        yield Anomaly("G1c", f"written or read before each other: {' < '.join(cycle)}")


def _cycle(before: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []
