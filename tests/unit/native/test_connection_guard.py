"""Which connections of the gRPC listener are ended."""

from __future__ import annotations

from lakemq.broker_core.api.limits.connection_limits import ConnectionLimits
from lakemq.plugins.native.server.connection_guard import (
    REFUSALS_MAX,
    UNAUTHENTICATED_MAX_BYTES,
    Reconciler,
    limits_of,
)
from lakemq.plugins.native.server.tcp_sockets import TcpConnection


def seen(number: int, host: str = "192.0.2.1", received: int = 0) -> TcpConnection:
    return TcpConnection(host, 40_000 + number, number, received)


def test_who_does_not_authenticate_in_time_is_ended_and_others_are_not() -> None:
    guard = Reconciler(ConnectionLimits(), 10)
    both = [seen(1), seen(2)]
    assert guard.look(both, 0) == []
    guard.authenticated("192.0.2.1", 40_001)
    assert guard.look(both, 9) == []
    assert guard.look(both, 11) == [2]
    assert guard.look([seen(1)], 3600) == []


def test_who_authenticated_while_we_looked_is_known_at_the_next_look() -> None:
    guard = Reconciler(ConnectionLimits(), 10)
    guard.authenticated("192.0.2.1", 40_001)
    assert guard.look([], 0) == []  # what the system told is older than the call
    assert guard.look([seen(1)], 1) == []
    assert guard.look([seen(1)], 60) == []


def test_an_end_is_forgotten_and_a_new_connection_of_the_same_port_is_new() -> None:
    guard = Reconciler(ConnectionLimits(), 10)
    guard.authenticated("192.0.2.1", 40_001)
    guard.look([seen(1)], 0)
    for now in (1, 2):
        guard.look([], now)
    again = TcpConnection("192.0.2.1", 40_001, 99, 0)
    assert guard.look([again], 3) == []
    assert guard.look([again], 14) == [99]


def test_many_bytes_and_many_refused_calls_end_a_connection_that_is_not_known() -> None:
    guard = Reconciler(ConnectionLimits(), 10)
    large = [seen(number, received=UNAUTHENTICATED_MAX_BYTES + 1) for number in (1, 2)]
    guard.authenticated("192.0.2.1", 40_001)
    assert guard.look(large, 0) == [2]
    few = [
        guard.refused("192.0.2.1", port) for port in (40_001, 40_003) for _ in range(REFUSALS_MAX)
    ]
    assert not any(few)
    assert guard.look([large[0], seen(3)], 1) == []
    assert guard.refused("192.0.2.1", 40_003)
    assert guard.look([large[0], seen(3)], 1) == [3]


def test_one_address_does_not_take_the_share_of_the_others() -> None:
    guard = Reconciler(limits_of(64), 10)
    flood = [seen(number) for number in range(64)]
    assert len(guard.look(flood, 0)) == 64 - 4
    others = [seen(100 + number, f"192.0.2.{10 + number}") for number in range(20)]
    assert len(guard.look([*flood[:4], *others], 1)) == 20 - 12
    for each in others[:12]:
        guard.authenticated(each.host, each.port)
    guard.look([*flood[:4], *others[:12]], 2)
    assert guard.limiter.unauthenticated == 4
