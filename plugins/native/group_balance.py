"""Which member of a consumer group gets which partition. Pure.

Sticky and balanced: a member keeps what it has as far as balance allows; the counts of two members
that read the same topics differ by one at most. Deterministic, so the order of joins decides
nothing but who keeps what.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_core.api.types import TopicPartition


def balance(
    topics_of: Mapping[str, frozenset[str]],
    partitions: Mapping[str, int],
    held: Mapping[str, frozenset[TopicPartition]],
) -> dict[str, frozenset[TopicPartition]]:
    """Member -> its partitions. `topics_of`: member -> topics it reads; `partitions`: topic ->
    number of partitions (absent: the topic isn't there); `held`: member -> what it has now.

    Every partition of a topic that anybody reads goes to exactly one of its readers.
    """
    readers = _readers(topics_of, partitions)
    shares: dict[str, list[TopicPartition]] = {member: [] for member in sorted(topics_of)}
    taken: set[TopicPartition] = set()
    for member, share in shares.items():
        for place in sorted(held.get(member, frozenset())):
            there = place.partition < partitions.get(place.topic, 0)
            if there and place.topic in topics_of[member] and place not in taken:
                share.append(place)
                taken.add(place)
    for topic, who in readers.items():
        for number in range(partitions[topic]):
            place = TopicPartition(topic, number)
            if place not in taken:
                shares[min(who, key=lambda member: (len(shares[member]), member))].append(place)
    _even_out(shares, readers)
    return {member: frozenset(share) for member, share in shares.items()}


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


def _even_out(shares: dict[str, list[TopicPartition]], readers: Mapping[str, list[str]]) -> None:
    """Move partitions from the fullest to the emptiest reader of their topic while that helps.

    Each move brings two counts closer, so the sum of their squares falls and this ends.
    """
    moved = True
    while moved:
        moved = False
        for topic, who in readers.items():
            while True:
                low = min(who, key=lambda member: (len(shares[member]), member))
                givers = [each for each in who if any(at.topic == topic for at in shares[each])]
                high = max(givers, key=lambda member: (len(shares[member]), member))
                if len(shares[high]) - len(shares[low]) < 2:
                    break
                last = max(at for at in shares[high] if at.topic == topic)
                shares[high].remove(last)
                shares[low].append(last)
                moved = True
