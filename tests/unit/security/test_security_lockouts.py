"""Goal: who guesses waits, whatever a guess looks like; who does not is let in meanwhile."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from pathlib import Path

import pytest

from lakemq.broker_core.access import Access
from lakemq.broker_core.api.access import Credentials, Principal
from lakemq.broker_core.api.errors import NotAuthenticated, Unavailable
from lakemq.broker_core.security.authn import passwords
from lakemq.broker_core.security.authn.attempts import AttemptRules, Attempts
from lakemq.broker_core.security.authn.password_users import FileUsers, PasswordAuthenticator
from lakemq.broker_core.security.authn.passwords import PasswordChecker
from lakemq.broker_core.security.authn.tokens import TokenAuthenticator
from lakemq.broker_core.security.authn.users import UserRecord, user_line
from lakemq.meta_service.api.fair_line import FairLine
from tests.unit.security.tokens.test_security_tokens import settings, signed

ANN = UserRecord("ann", "$argon2id$of ann".replace(" ", "-"))
TOKEN_SHAPED = b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.AAAA"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password is right when it is the user's name; argon2 is tested elsewhere."""
    monkeypatch.setattr(passwords, "verify", lambda user, word: word == user.name.encode())


def access(folder: Path, *, with_tokens: bool, checker: PasswordChecker | None = None) -> Access:
    users = folder / "users"
    users.write_text(user_line(ANN) + "\n")
    authenticators = [
        PasswordAuthenticator(FileUsers(str(users)), checker or PasswordChecker(1, 10))
    ]
    if with_tokens:
        authenticators.insert(0, TokenAuthenticator(settings(folder), lambda: 0))  # type: ignore[arg-type]
    attempts = Attempts(AttemptRules(3, 50, 1000, 1000, 60_000))
    return Access(authenticators, [], attempts=attempts, now_ms=lambda: 0)


def shown(password: bytes, host: str = "10.0.0.1", user: str = "ann") -> Credentials:
    return Credentials("mqtt", "c", host, user, password)


@pytest.mark.parametrize("with_tokens", [True, False])
async def test_a_guess_that_looks_like_a_token_is_a_guess(
    tmp_path: Path, with_tokens: bool
) -> None:
    made = access(tmp_path, with_tokens=with_tokens)
    for _ in range(3):
        with pytest.raises(NotAuthenticated, match=r"^(?!too many)"):
            await made.authenticate(shown(TOKEN_SHAPED))
    with pytest.raises(NotAuthenticated, match="too many failed logins"):
        await made.authenticate(shown(TOKEN_SHAPED))
    with pytest.raises(NotAuthenticated, match="too many failed logins"):
        await made.authenticate(shown(b"ann"))
    assert (await made.authenticate(shown(b"ann", "10.0.0.2"))).name == "ann"


async def test_a_token_that_has_expired_is_no_guess(tmp_path: Path) -> None:
    """Devices that come back with the tokens of yesterday lock nobody out."""
    made = access(tmp_path, with_tokens=True)
    for _ in range(5):
        with pytest.raises(NotAuthenticated, match="expired"):
            await made.authenticate(shown(signed(exp=1).encode()))
    assert (await made.authenticate(shown(signed().encode()))).name == "ann"
    for _ in range(3):
        with pytest.raises(NotAuthenticated):
            await made.authenticate(shown(signed(exp=1).encode()[:-4] + b"AAAA"))
    with pytest.raises(NotAuthenticated, match="too many failed logins"):
        await made.authenticate(shown(signed().encode()))


def token_of(header: object, payload: str = '{"sub":"ann","exp":4000000000}') -> bytes:
    head = header if isinstance(header, str) else json.dumps(header)
    parts = [base64.urlsafe_b64encode(part.encode()).rstrip(b"=") for part in (head, payload)]
    return b".".join([*parts, b"AAAA"])


@pytest.mark.parametrize(
    "token",
    [
        token_of({"alg": ["RS256"]}),
        token_of({"alg": {}}),
        token_of({"alg": None}),
        token_of({"alg": 7}),
        token_of({"alg": "RS256", "kid": ["x"]}),
        token_of({"alg": "RS256", "kid": {}}),
        token_of('{"alg":"RS256","x":' + "[" * 4000 + "]" * 4000 + "}"),
        token_of("[" * 5000),
        token_of({"alg": "RS256"}, "[" * 5000),
        token_of({"alg": "RS256"}, '{"sub":' + "[" * 4000 + "]" * 4000 + "}"),
        token_of('"RS256"'),
        token_of({"alg": "RS256", "crit": ["b64"], "b64": False}),
    ],
)
async def test_odd_tokens_are_refused_and_counted(tmp_path: Path, token: bytes) -> None:
    for issuer in ("", "acme"):
        made = access(tmp_path, with_tokens=True)
        made._authenticators[0]._settings = settings(tmp_path, issuer=issuer)  # type: ignore[attr-defined]
        for _ in range(3):
            with pytest.raises(NotAuthenticated, match=r"^(?!too many)"):
                await made.authenticate(shown(token))
        with pytest.raises(NotAuthenticated, match="too many failed logins"):
            await made.authenticate(shown(token))


async def test_an_authenticator_that_fails_lets_nobody_in(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def authenticate(self, credentials: Credentials) -> Principal | None:
            raise KeyError("secret of ann")

    made = Access([Broken()], [], anonymous="always")
    with pytest.raises(Unavailable, match="authentication is not available"):
        await made.authenticate(shown(b"x"))
    (told,) = caplog.messages
    assert "Broken" in told and "KeyError" in told and "secret" not in told
    assert caplog.records[0].exc_info is None


def test_an_ipv6_address_stands_for_its_network() -> None:
    """Whoever has one address of a /64 has all of them."""
    attempts = Attempts(AttemptRules(2, 4, 1000, 1000, 60_000))
    for number in range(2):
        attempts.failed(f"2001:db8::{number}", "ann", 0)
    assert attempts.wait_ms("2001:db8::ffff:1", "ann", 0) == 1000
    assert attempts.wait_ms("2001:db8:0:1::1", "ann", 0) == 0
    assert attempts.wait_ms("2001:db8::5", "bob", 0) == 0
    for number in range(2):
        attempts.failed(f"2001:db8::a:{number}", "bob", 0)
    assert attempts.wait_ms("2001:db8::b", "eve", 0) == 1000, "and all names of it"
    attempts.succeeded("2001:db8::c", "ann")
    for host in ("10.0.0.1", "::ffff:10.0.0.1"):
        attempts.failed(host, "dan", 0)
    assert attempts.wait_ms("10.0.0.1", "dan", 0) == 1000
    assert attempts.wait_ms("10.0.0.2", "dan", 0) == 0


# -- the line of those whose passwords are checked


def test_a_line_serves_peers_in_turn() -> None:
    line: FairLine[str] = FairLine()
    for number in range(4):
        line.add("a", f"a{number}")
    line.add("b", "b0")
    line.add("c", "c0")
    line.add("b", "b1")
    taken = [line.take() for _ in range(len(line))]
    assert taken == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]
    assert not len(line)


def test_a_full_line_makes_room_at_the_cost_of_who_has_most() -> None:
    line: FairLine[str] = FairLine()
    for number in range(3):
        line.add("a", f"a{number}")
    line.add("b", "b0")
    assert line.give_way("c") == "a2", "its newest"
    line.add("c", "c0")
    assert line.give_way("c") is None, "nobody has two more than it"
    assert line.give_way("a") is None
    assert line.give_way("d") == "a1"
    line.remove("b", "b0")
    line.remove("b", "b0")
    assert [line.take() for _ in range(len(line))] == ["a0", "c0"]


async def test_one_address_cannot_fill_the_line_of_logins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its flood waits; somebody else is next, though the line was full."""
    gate, order = threading.Event(), list[bytes]()

    def slowly(user: UserRecord, word: bytes) -> bool:
        gate.wait(30)
        order.append(word)
        return word == user.name.encode()

    monkeypatch.setattr(passwords, "verify", slowly)
    checker = PasswordChecker(1, 20)
    flood = [
        asyncio.ensure_future(checker.check(ANN, b"guess-%d" % number, "10.6.6.6"))
        for number in range(50)
    ]
    await asyncio.sleep(0)
    honest = [
        asyncio.ensure_future(checker.check(ANN, b"ann", f"10.0.0.{number}")) for number in range(3)
    ]
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*honest) == [True, True, True]
    outcomes = await asyncio.gather(*flood, return_exceptions=True)
    assert sum(isinstance(each, Unavailable) for each in outcomes) == 33 == checker.refused
    assert [word for word in order[:5] if word == b"ann"] == [b"ann"] * 3
    checker.close()


async def test_a_login_that_is_given_up_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(passwords, "verify", lambda user, word: gate.wait(30))
    checker = PasswordChecker(1, 3)
    waiting = [asyncio.ensure_future(checker.check(ANN, b"x", "h")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await checker.check(ANN, b"x", "h")
    waiting[2].cancel()
    await asyncio.gather(waiting[2], return_exceptions=True)
    last = asyncio.ensure_future(checker.check(ANN, b"x", "h"))
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*waiting[:2], last) == [True, True, True]
    checker.close()


async def test_who_waits_when_the_node_stops_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(passwords, "verify", lambda user, word: gate.wait(30))
    checker = PasswordChecker(1, 5)
    waiting = [asyncio.ensure_future(checker.check(ANN, b"x", "h")) for _ in range(3)]
    await asyncio.sleep(0)
    checker.close()
    gate.set()
    done, late = await asyncio.wait(waiting, timeout=20)
    assert not late
    assert [isinstance(each.exception(), Unavailable) for each in waiting[1:]] == [True, True]
