"""Memory and CPU of what nodes tell each other about subscriptions: `python -m
benchmarks.cluster.mqtt_interest [--filters 1000000] [--wildcards 10000]`.

One node's filters are told to another one, message by message, in one process without a network.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from lakemq.broker_core.api.cluster.channels import Peer
from lakemq.plugins.mqtt.interest.frames import Members, decode
from lakemq.plugins.mqtt.interest.hashes import Hasher
from lakemq.plugins.mqtt.interest.others import OthersInterest
from lakemq.plugins.mqtt.interest.own import OwnInterest

NAMES = 50_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--filters", type=int, default=1_000_000)
    parser.add_argument("--wildcards", type=int, default=10_000)
    wanted = parser.parse_args()
    filters = [f"devices/{number}/state" for number in range(wanted.filters)]
    filters += [f"sites/{number}/+/alarms" for number in range(wanted.wildcards)]
    for traced in (False, True):  # what memory costs is counted at the cost of CPU
        if traced:
            tracemalloc.start()
        run(filters, traced)


def run(filters: list[str], traced: bool) -> None:
    hasher, peer = Hasher("bench"), Peer("a", 1)
    own, others = OwnInterest(hasher, lambda key: Members(0, 0)), OthersInterest(hasher)
    measured("a node counts its filters", lambda: count(own, filters), len(filters), traced)
    own.reachable("b")
    others.begun(peer)
    sizes: list[int] = []
    tell_all = partial(tell, own, others, peer, sizes)
    measured("another is told all of them", tell_all, len(filters), traced)
    if traced:
        total = sum(sizes) / 2**20
        print(f"{len(sizes)} messages, {total:.1f} MiB, {max(sizes) >> 10} KiB at most")
        return
    names = filters[:NAMES]
    measured("it finds who wants a name", lambda: [*map(others.who, names)], NAMES, traced)
    measured("... that it found before", lambda: [*map(others.who, names)], NAMES, traced)


def count(own: OwnInterest, filters: list[str]) -> None:
    for one in filters:
        own.added(one)
    while own.changed:
        own.told()


def tell(own: OwnInterest, others: OthersInterest, peer: Peer, sizes: list[int]) -> None:
    while (message := own.told().get("b")) is not None:
        sizes.append(len(message))
        others.said(peer, decode(message))
    assert not others.unknown()


def measured(what: str, work: Callable[[], object], count: int, traced: bool) -> None:
    before = tracemalloc.get_traced_memory()[0]
    began = time.process_time()
    work()
    cpu_s = time.process_time() - began
    if traced:
        print(f"{what}: {(tracemalloc.get_traced_memory()[0] - before) / 2**20:.1f} MiB more")
    else:
        print(f"{what}: {cpu_s * 1e6 / count:.2f} us of CPU each")


if __name__ == "__main__":
    main()
