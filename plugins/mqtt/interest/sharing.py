"""Which node of several gives a message to its members of a shared group. No IO."""

from __future__ import annotations

from collections.abc import Mapping

from lakemq.plugins.mqtt.interest.frames import Members


def serves(node_id: str, members: Mapping[str, Members], number: int) -> bool:
    """Whether it is this node, by the rule that all nodes have: message `number` goes to one member
    of all that are connected, or where none is, of all. In calm times, when nodes know the same of
    each other, exactly one node does."""
    connected = sum(one.connected for one in members.values())
    total = connected or sum(one.others for one in members.values())
    if not total:
        return node_id in members
    place = number % total
    for node, one in sorted(members.items()):
        place -= one.connected if connected else one.others
        if place < 0:
            return node == node_id
    return False
