"""Members of a shared group on all nodes of a simulated cluster, and what they must have got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from tests.support.mqtt.cluster.clients import Subscriber
from tests.support.mqtt.cluster.world import World


class Group:
    """Its members connect to any node, and want all numbers."""

    def __init__(self, world: World, count: int) -> None:
        names = [f"g{number}" for number in range(count)]
        self.members = [Subscriber(world, name, "$share/g/number/#") for name in names]

    def check(self, published: Set[tuple[str, int]], calm: Set[tuple[str, int]]) -> None:
        """(topic name, number) of what was published at QoS 1 and 2, and of what of it in calm
        times: at least one member took each, one alone where it was calm."""
        got = Counter((name, number) for one in self.members for _, name, number in one.taken)
        missing = sorted(published - got.keys())
        assert not missing, f"no member got {missing}"
        several = {one: got[one] for one in calm if got[one] != 1}
        assert not several, f"several members got {several} in calm times"
