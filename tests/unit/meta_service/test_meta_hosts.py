"""Goal: plain text and anonymous clients are for this machine alone, however it is named."""

import pytest

from lakemq.meta_service.api.hosts import is_loopback, is_wildcard, join_host


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.8.9.10", "::1", "::1%lo", "::ffff:127.0.0.1"]
)
def test_hosts_that_are_this_machine(host: str) -> None:
    assert is_loopback(host) and not is_wildcard(host)


@pytest.mark.parametrize(
    "host", ["128.0.0.1", "::2", "::ffff:10.0.0.1", "localhost.example", "unknown", "127.1.example"]
)
def test_hosts_that_are_not(host: str) -> None:
    assert not is_loopback(host) and not is_wildcard(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_a_wildcard_is_reached_from_elsewhere(host: str) -> None:
    assert is_wildcard(host) and not is_loopback(host)


def test_ports_join() -> None:
    assert (join_host("a", 1), join_host("::1", 2)) == ("a:1", "[::1]:2")
