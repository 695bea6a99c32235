"""Which member of a consumer group gets which partition.

Sticky and balanced: a member keeps what it has as far as balance allows; the counts of two members
that read the same topics differ by one at most. Deterministic, so the order of joins decides
nothing but who keeps what.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from lakemq.broker_core.api.types import TopicPartition


class _Share:
    """What one member has."""

    __slots__ = ("count", "numbers")

    def __init__(self) -> None:
        self.count = 0
        self.numbers: dict[str, list[int]] = {}
        """Topic -> partitions, ascending."""

    def add(self, topic: str, number: int) -> None:
        insort(self.numbers.setdefault(topic, []), number)
        self.count += 1

    def take_last(self, topic: str) -> int:
        """Take the highest partition of a topic away."""
        self.count -= 1
        return self.numbers[topic].pop()

    def places(self) -> frozenset[TopicPartition]:
        return frozenset(
            TopicPartition(topic, number)
            for topic, numbers in self.numbers.items()
            for number in numbers
        )


def balance(
    topics_of: Mapping[str, frozenset[str]],
    partitions: Mapping[str, int],
    held: Mapping[str, frozenset[TopicPartition]],
) -> dict[str, frozenset[TopicPartition]]:
    """Member -> its partitions. `topics_of`: member -> topics it reads; `partitions`: topic ->
    number of partitions (absent: the topic isn't there); `held`: member -> what it has now.

    Every partition of a topic that has readers goes to exactly one of them.
    """
    readers = _readers(topics_of, partitions)
    shares = {member: _Share() for member in sorted(topics_of)}
    taken: set[TopicPartition] = set()
    for member, share in shares.items():
        for place in held.get(member, frozenset()):
            # Kept only if the topic still has the partition, the member still reads the topic, and
            # no other member was found to have it.
            there = place.partition < partitions.get(place.topic, 0)
            if there and place.topic in topics_of[member] and place not in taken:
                share.add(*place)
                taken.add(place)
    for topic, who in readers.items():
        emptiest = [(shares[member].count, member) for member in who]
        heapify(emptiest)
        for number in range(partitions[topic]):
            if TopicPartition(topic, number) not in taken:
                count, member = emptiest[0]
                shares[member].add(topic, number)
                heapreplace(emptiest, (count + 1, member))
    _even_out(shares, readers)
    return {member: share.places() for member, share in shares.items()}


def _readers(
    topics_of: Mapping[str, frozenset[str]], partitions: Mapping[str, int]
) -> dict[str, list[str]]:
    """Topic -> members that read it, for topics that are there."""
    readers: dict[str, list[str]] = {}
    for member in sorted(topics_of):
        for topic in sorted(topics_of[member]):
            if topic in partitions:
                readers.setdefault(topic, []).append(member)
    return dict(sorted(readers.items()))


def _even_out(shares: Mapping[str, _Share], readers: Mapping[str, list[str]]) -> None:
    """Move partitions from the fullest to the emptiest reader of their topic while that helps.

    Each move brings two counts closer, so the sum of their squares falls and this ends.
    """
    moved = True
    while moved:
        moved = False
        for topic, who in readers.items():
            moved |= _even_out_topic(topic, [shares[member] for member in who])


def _even_out_topic(topic: str, who: Sequence[_Share]) -> bool:
    """Whether anything was moved. Of equals the first gets and the last gives."""
    lowest = [(share.count, rank) for rank, share in enumerate(who)]
    highest = [(-share.count, -rank) for rank, share in enumerate(who) if share.numbers.get(topic)]
    heapify(lowest)
    heapify(highest)
    moved = False
    while True:
        # Entries of counts that have changed since are left out when they come up.
        while lowest[0][0] != who[lowest[0][1]].count:
            heappop(lowest)
        while highest and not _still_gives(topic, who[-highest[0][1]], -highest[0][0]):
            heappop(highest)
        if not highest or -highest[0][0] - lowest[0][0] < 2:
            return moved
        giver, taker = -highest[0][1], lowest[0][1]
        who[taker].add(topic, who[giver].take_last(topic))
        for rank in (giver, taker):
            heappush(lowest, (who[rank].count, rank))
            heappush(highest, (-who[rank].count, -rank))
        moved = True


def _still_gives(topic: str, share: _Share, count: int) -> bool:
    return share.count == count and bool(share.numbers.get(topic))
