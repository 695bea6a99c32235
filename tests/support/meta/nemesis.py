"""Harm done to a simulated cluster, and what must hold when it is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.support.meta.clients import Client, ElectionReader
from tests.support.meta.cluster import Cluster, Member
from tests.support.meta.linearizability import Call, is_linearizable


class Nemesis:
    """Does harm for a while, from the cluster's rng."""

    def __init__(self, cluster: Cluster, extra: Sequence[Callable[[], None]] = ()) -> None:
        """`extra`: more harm, always among what is done."""
        self._cluster = cluster
        self._rng = cluster.rng
        self._kinds = self._rng.sample(
            [
                self._crash,
                self._crash_all,
                self._blink,
                self._power_cut,
                self._pause,
                self._isolate,
                self._isolate_leader,
                self._split,
                self._one_way,
                self._bad_network,
                self._transfer,
                self._wipe,
                self._forget_newer_leader,
                self._lose_with_the_commit,
                self._take_for_dead,
            ],
            self._rng.randint(1, 5),
        ) + list(extra)
        self.stopping = False

    def prefer_forgetting(self) -> None:
        """Mostly disks that forget a newer leader."""
        self._kinds += [self._forget_newer_leader] * 2 * len(self._kinds)

    def start(self) -> None:
        self._cluster.at(self._rng.uniform(0.5, 1.5), self._act)

    def _act(self) -> None:
        if self.stopping:
            return
        self._rng.choice(self._kinds)()
        if self._rng.random() < 0.4:
            self._cluster.at(self._rng.uniform(0.2, 2.0), self._heal)
        self._cluster.at(self._rng.uniform(0.1, 1.2), self._act)

    def _heal(self) -> None:
        if not self.stopping:
            self._cluster.heal()

    def _any(self) -> str:
        return self._rng.choice(list(self._cluster.members))

    def _crash(self) -> None:
        member = self._cluster.members[self._any()]
        member.crash()
        self._cluster.at(self._rng.uniform(0.0, 1.5), member.start)

    def _take_for_dead(self) -> None:
        """Rightly or wrongly."""
        told, dead = self._cluster.members[self._any()], self._any()
        node = told.node
        if node is not None:
            told.call(lambda: node.peer_refused(dead))

    def _blink(self) -> None:
        """Everybody loses power again and again for some milliseconds, also between a vote and the
        next candidate."""
        for _ in range(self._rng.randint(5, 20)):
            member = self._cluster.members[self._any()]
            self._cluster.at(self._rng.uniform(0.0, 3.0), lambda member=member: self._flick(member))  # type: ignore[misc] # mypy cannot infer a lambda with a default

    def _flick(self, member: Member) -> None:
        if member.node is not None and not self.stopping:
            member.crash()
            self._cluster.at(0.001, member.start)

    def _crash_all(self) -> None:
        for member in self._cluster.members.values():
            member.crash()
            self._cluster.at(self._rng.uniform(0.0, 1.0), member.start)

    def _power_cut(self) -> None:
        """In the middle of some disk operation soon."""
        member = self._cluster.members[self._any()]
        member.disk.cut_at = member.disk.steps + self._rng.randint(1, 12)
        self._cluster.at(self._rng.uniform(0.3, 1.5), member.start)

    def _wipe(self) -> None:
        name = self._any()
        if self._may_wipe(name):
            self._cluster.members[name].wipe()
            self._cluster.at(self._rng.choice([0.0, 0.1, 1.0]), self._cluster.members[name].start)

    def _may_wipe(self, name: str) -> bool:
        """A disk dies and is replaced: of one member at a time, as a majority must remember, and
        none before every member has caught up once (docs/metaservice.md)."""
        members = self._cluster.members
        groups = [member.node.group.voters for member in members.values() if member.node]
        voters = [name for name in members if any(name in group for group in groups)]
        enough = all(len(group) >= 3 for group in groups if group) and len(groups) == len(members)
        return enough and all(members[other].has_caught_up for other in voters if other != name)

    def _forget_newer_leader(self) -> None:
        """A leader is cut off; when the others may have another one, some of them come over to it,
        one with an empty disk."""
        leader = self._cluster.leader()
        if leader is not None:
            if self._rng.random() < 0.5:
                leader.call(lambda: leader.node and leader.node.transfer_leadership(None))
                delay_s = self._rng.uniform(0.03, 0.2)
            else:
                self._cluster.isolate(leader.name)
                delay_s = self._rng.uniform(0.5, 1.0)
            self._cluster.at(delay_s, lambda: self._come_over(leader))

    def _come_over(self, leader: Member) -> None:
        names = [name for name in self._cluster.members if name != leader.name]
        coming = self._rng.sample(names, (len(names) + 1) // 2)
        if self.stopping or leader.node is None or not self._may_wipe(coming[0]):
            return
        self._cluster.network.cut.clear()
        self._cluster.split({leader.name, *coming})
        self._cluster.members[coming[0]].wipe()
        self._cluster.members[coming[0]].start()
        self._cluster.at(self._rng.uniform(0.3, 1.5), self._heal)

    def _lose_with_the_commit(self) -> None:
        """The leader commits with as few as it can, and is gone before all of them hear of it: its
        target has the entries, and is elected by those that lag."""
        leader, members = self._cluster.leader(), list(self._cluster.members)
        if leader is None:
            return
        others = [name for name in members if name != leader.name]
        self._cluster.network.slow = self._rng.choice([0.0, 0.3])
        self._cluster.split(set(self._rng.sample(others, (len(members) - 1) // 2)))
        self._cluster.at(self._rng.uniform(0.2, 0.8), lambda: self._leave(leader))

    def _leave(self, leader: Member) -> None:
        if not self.stopping:
            self._cluster.network.cut.clear()
            self._cluster.isolate(leader.name)

    def _pause(self) -> None:
        member = self._cluster.members[self._any()]
        member.pause()
        self._cluster.at(self._rng.uniform(0.1, 3.0), member.resume)

    def _isolate(self) -> None:
        self._cluster.isolate(self._any())

    def _isolate_leader(self) -> None:
        leader = self._cluster.leader()
        if leader is not None:
            self._cluster.isolate(leader.name)

    def _split(self) -> None:
        names = list(self._cluster.members)
        self._cluster.split(set(self._rng.sample(names, len(names) // 2)))

    def _one_way(self) -> None:
        names = list(self._cluster.members)
        one, other = self._rng.sample(names, 2)
        self._cluster.network.cut.add((one, other))

    def _bad_network(self) -> None:
        network = self._cluster.network
        network.loss = self._rng.choice([0.0, 0.02, 0.2])
        network.repeat = self._rng.choice([0.0, 0.1, 0.5])
        network.slow = self._rng.choice([0.0, 0.05, 0.3])

    def _transfer(self) -> None:
        leader = self._cluster.leader()
        if leader is not None:
            leader.call(lambda: leader.node and leader.node.transfer_leadership(None))


def alike(cluster: Cluster) -> bool:
    """Whether everybody has applied everything and there is a leader."""
    leader = cluster.leader()
    if leader is None or leader.node is None:
        return False
    nodes = [cluster.members[name].node for name in leader.node.group.voters]
    return all(
        node is not None and node.applied_index == leader.node.log.last_index for node in nodes
    )


def check_histories(
    cluster: Cluster, clients: list[Client], at_elections: ElectionReader | None = None
) -> None:
    label = cluster.invariants.label
    leader = cluster.leader()
    assert leader is not None and leader.node is not None
    stores = [cluster.members[name].store.rows for name in leader.node.group.voters]
    assert all(rows == stores[0] for rows in stores), f"{label}: members differ"
    for key in (b"r0", b"r1"):
        calls: list[Call] = [call for client in clients for call in client.calls[key]]
        calls += at_elections.calls[key] if at_elections is not None else []
        assert is_linearizable(calls), f"{label}: {key!r} is not linearizable"
    counted = sorted(entry for client in clients for entry in client.counted)
    numbers = [number for _, _, number in counted]
    assert len(set(numbers)) == len(numbers), f"{label}: an id was handed out twice"
    _check_order(counted, f"{label}: ids")
    held = sorted(entry for client in clients for entry in client.held)
    for (_, until, _), (since, _, _) in zip(held, held[1:], strict=False):
        assert since >= until, f"{label}: two clients held the lock at once"
    _check_order(held, f"{label}: fencing tokens")


def _check_order(entries: list[tuple[float, float, int]], label: str) -> None:
    """What ended before another began has the smaller number."""
    for _, end, number in entries:
        for begin, _, later in entries:
            assert not (begin > end and later < number), f"{label} went back"
