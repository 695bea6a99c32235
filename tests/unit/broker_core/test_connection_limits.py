"""Who may connect: all, one peer, those that have not authenticated, and what they hold."""

import random

import pytest

from lakemq.broker_core.api.limits.connection_limits import (
    AdmittedConnection,
    ConnectionLimiter,
    ConnectionLimits,
    ConnectionRefused,
    peer_of,
)


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("unix:", "unix:"),
        ("", ""),
    ],
)
def test_a_peer_is_an_address_or_an_ipv6_network(host: str, peer: str) -> None:
    assert peer_of(host) == peer


def refused(limiter: ConnectionLimiter, host: str) -> str:
    with pytest.raises(ConnectionRefused) as caught:
        limiter.admit(host)
    return caught.value.bound


def test_without_bounds_everybody_is_admitted() -> None:
    limiter = ConnectionLimiter(ConnectionLimits())
    for _ in range(1000):
        limiter.admit("192.0.2.1").hold(1 << 30)
    assert limiter.connections == limiter.unauthenticated == 1000


def test_a_closed_connection_makes_room_for_one() -> None:
    limiter = ConnectionLimiter(ConnectionLimits(connections_max=2))
    first = limiter.admit("192.0.2.1")
    limiter.admit("192.0.2.2")
    assert refused(limiter, "192.0.2.3") == "connections"
    first.close()
    first.close()
    limiter.admit("192.0.2.3")
    assert refused(limiter, "192.0.2.3") == "connections"
    assert limiter.refused == {"connections": 2}


def test_a_peer_has_its_share_even_with_many_ipv6_addresses() -> None:
    limiter = ConnectionLimiter(ConnectionLimits(peer_max=2))
    limiter.admit("2001:db8::1").authenticate()
    limiter.admit("2001:db8::2")
    assert refused(limiter, "2001:db8::3") == "peer"
    limiter.admit("2001:db8:0:1::3")


def test_who_has_not_authenticated_leaves_room_for_others_once_it_has() -> None:
    limits = ConnectionLimits(connections_max=10, unauthenticated_max=2)
    limiter = ConnectionLimiter(limits)
    first = limiter.admit("192.0.2.1")
    limiter.admit("192.0.2.2")
    assert refused(limiter, "192.0.2.3") == "unauthenticated"
    first.authenticate()
    first.authenticate()
    limiter.admit("192.0.2.3")
    assert refused(limiter, "192.0.2.3") == "unauthenticated"


def test_one_peer_does_not_take_the_whole_share_of_the_unauthenticated() -> None:
    limits = ConnectionLimits(unauthenticated_max=10, unauthenticated_peer_max=2)
    limiter = ConnectionLimiter(limits)
    for _ in range(2):
        limiter.admit("192.0.2.1")
    assert refused(limiter, "192.0.2.1") == "unauthenticated_peer"
    limiter.admit("192.0.2.2")


def test_held_bytes_are_bounded_until_the_connection_authenticates() -> None:
    limiter = ConnectionLimiter(ConnectionLimits(unauthenticated_max_bytes=100))
    first, second = limiter.admit("192.0.2.1"), limiter.admit("192.0.2.2")
    first.hold(60)
    second.hold(40)
    with pytest.raises(ConnectionRefused) as caught:
        second.hold(41)
    assert caught.value.bound == "bytes"
    assert limiter.unauthenticated_bytes == 100
    first.authenticate()
    first.hold(1000)
    assert limiter.unauthenticated_bytes == 40
    second.close()
    second.hold(5)
    assert limiter.unauthenticated_bytes == 0


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_the_counts_are_those_of_the_open_connections(seed: int) -> None:
    chance = random.Random(seed)
    limits = ConnectionLimits(20, 8, 10, 5, 1000)
    limiter = ConnectionLimiter(limits)
    kept: dict[AdmittedConnection, int] = {}
    for _ in range(400):
        happens = chance.random()
        try:
            if happens < 0.4:
                kept[limiter.admit(f"192.0.2.{chance.randrange(4)}")] = 0
            elif kept:
                connection = chance.choice(list(kept))
                if happens < 0.6:
                    connection.close()
                    del kept[connection]
                elif happens < 0.8:
                    connection.authenticate()
                else:
                    size = chance.randrange(400)
                    connection.hold(size)
                    kept[connection] = size
        except ConnectionRefused:
            pass
        waiting = [each for each in kept if not each.authenticated]
        assert limiter.connections == len(kept) <= 20, f"seed {seed}"
        assert limiter.unauthenticated == len(waiting) <= 10, f"seed {seed}"
        assert limiter.unauthenticated_bytes == sum(kept[each] for each in waiting) <= 1000
        for peer in {each.peer for each in kept}:
            assert sum(each.peer == peer for each in kept) <= 8, f"seed {seed}"
            assert sum(each.peer == peer for each in waiting) <= 5, f"seed {seed}"
    for connection in kept:
        connection.close()
    assert not limiter._peers and not limiter._waiting
