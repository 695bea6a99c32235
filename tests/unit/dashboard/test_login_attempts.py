"""Goal: passwords can't be guessed quickly, and no guessing locks out who knows the password."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.errors import ConfigError
from lakemq.plugins.admin.dashboard.serving import attempts as attempts_module
from lakemq.plugins.admin.dashboard.serving.attempts import (
    HOST_MAX,
    USER_MAX,
    WINDOW_MS,
    LoginAttempts,
)
from lakemq.plugins.admin.proxies import Proxies


def test_an_address_has_ten_wrong_passwords_a_minute() -> None:
    attempts = LoginAttempts()
    tried = [attempts.begin("192.0.2.1", f"user-{n}", 0) for n in range(HOST_MAX + 2)]
    assert tried == [True] * HOST_MAX + [False] * 2
    assert attempts.begin("192.0.2.2", "ann", 0)
    assert not attempts.begin("192.0.2.1", "ann", WINDOW_MS - 1)
    assert attempts.begin("192.0.2.1", "ann", WINDOW_MS)


def test_right_passwords_do_not_count() -> None:
    attempts = LoginAttempts()
    for _ in range(3 * HOST_MAX):
        assert attempts.begin("192.0.2.1", "ann", 0)
        attempts.succeeded("192.0.2.1", "ann")


def test_one_network_of_ipv6_is_one_address() -> None:
    attempts = LoginAttempts()
    tried = [attempts.begin(f"2001:db8::{n:x}", f"user-{n}", 0) for n in range(1, HOST_MAX + 2)]
    assert tried == [True] * HOST_MAX + [False]


def test_a_user_can_not_be_guessed_from_many_addresses() -> None:
    attempts = LoginAttempts()
    assert attempts.begin("198.51.100.1", "root", 0)
    attempts.succeeded("198.51.100.1", "root")
    tried = [attempts.begin(f"192.0.2.{n}", "root", 0) for n in range(USER_MAX + 1)]
    assert tried == [True] * USER_MAX + [False]
    assert attempts.begin("198.51.100.1", "root", 0), "who has logged in there is not locked out"
    assert not attempts.begin("198.51.100.2", "root", 0)
    assert attempts.begin("192.0.2.99", "ann", 0)


def test_what_attackers_send_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts_module, "_KEPT_MAX", 50)
    attempts = LoginAttempts()
    for number in range(500):
        host = f"192.0.{number // 250}.{number % 250}"
        assert attempts.begin(host, f"user-{number}", 0)
        attempts.succeeded(host, f"user-{number}")
    assert len(attempts._counts) <= 50 and len(attempts._known) <= 50


PROXIES = Proxies("admin", ["10.0.0.0/8", "192.0.2.1", "2001:db8::/32"])


@pytest.mark.parametrize(
    ("host", "said", "visitor"),
    [
        ("203.0.113.1", ["198.51.100.7"], "203.0.113.1"),
        ("10.1.2.3", [], "10.1.2.3"),
        ("10.1.2.3", ["198.51.100.7"], "198.51.100.7"),
        ("10.1.2.3", ["198.51.100.7:4711"], "198.51.100.7"),
        ("10.1.2.3", ["[2001:dead::1]:80"], "2001:dead::1"),
        ("::ffff:10.1.2.3", ["198.51.100.7"], "198.51.100.7"),
        ("2001:db8::9", ["198.51.100.7"], "198.51.100.7"),
        ("10.1.2.3", ["127.0.0.1, 198.51.100.7"], "198.51.100.7"),
        ("10.1.2.3", ["127.0.0.1", "198.51.100.7"], "198.51.100.7"),
        ("10.1.2.3", ["127.0.0.1, 198.51.100.7, 192.0.2.1"], "198.51.100.7"),
        ("10.1.2.3", ["198.51.100.7, unknown"], "10.1.2.3"),
        ("10.1.2.3", ["10.0.0.9"], "10.0.0.9"),
        ("10.1.2.3", ["," * 30_000], "10.1.2.3"),
        ("", ["198.51.100.7"], ""),
    ],
    ids=str,
)
def test_only_known_proxies_are_believed(host: str, said: list[str], visitor: str) -> None:
    assert PROXIES.visitor(host, said) == visitor
    assert Proxies("admin").visitor(host, said) == host


def test_a_known_dashboard_is_believed_whatever_its_address() -> None:
    none = Proxies("admin")
    assert none.visitor("127.0.0.1", ["198.51.100.7"], known=True) == "198.51.100.7"
    assert none.visitor("127.0.0.1", ["192.0.2.9, 198.51.100.7"], known=True) == "198.51.100.7"
    assert none.visitor("127.0.0.1", [], known=True) == "127.0.0.1"


def test_a_proxy_is_an_address_or_a_network() -> None:
    with pytest.raises(ConfigError, match="admin: proxies: 'nginx' .*give an address"):
        Proxies("admin", ["nginx"])
