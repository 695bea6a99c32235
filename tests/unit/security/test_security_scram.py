"""Goal: SCRAM as in RFC 5802 and RFC 7677, byte for byte; no answer tells whether a user exists."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.access import Accepted, Challenge, Credentials
from lakemq.broker_core.api.errors import NotAuthenticated
from lakemq.broker_core.security.authn.attempts import AttemptRules, Attempts
from lakemq.broker_core.security.authn.password_users import ScramMechanism
from lakemq.broker_core.security.authn.scram import (
    read_client_first,
    scram_keys,
    server_final,
    server_first,
)
from lakemq.broker_core.security.authn.users import UserRecord

# RFC 7677, section 3
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
SAID = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = (
    f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
).encode()
PROOF = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
KEYS = scram_keys("SCRAM-SHA-256", "pencil", SALT, 4096)


class Book(dict[str, UserRecord]):
    def find(self, name: str) -> UserRecord | None:
        return self.get(name)

    def any_known(self) -> bool:
        return True


def mechanism(
    name: str = "SCRAM-SHA-256", users: Book | None = None, attempts: Attempts | None = None
) -> ScramMechanism:
    book = users if users is not None else Book(user=UserRecord("user", "", (KEYS,), ("r",)))
    tries = attempts or Attempts(AttemptRules(0, 0))
    return ScramMechanism(name, [book], tries, lambda: 0, lambda: SERVER_NONCE)


HERE = Credentials("mqtt", "c", "10.0.0.1")


async def test_the_exchange_of_rfc_7677() -> None:
    exchange = mechanism().begin(HERE)
    assert await exchange.step(FIRST) == Challenge(SAID.encode())
    accepted = await exchange.step(FINAL)
    assert isinstance(accepted, Accepted)
    assert accepted.data == PROOF
    assert (accepted.principal.name, accepted.principal.roles) == ("user", ("r",))


def test_the_exchange_of_rfc_5802_with_its_own_hash() -> None:
    """Section 5 is SHA-1, which is not offered: the arithmetic is checked with it all the same."""
    from lakemq.broker_core.security.authn import scram

    hashes = dict(scram.HASHES)
    scram.HASHES["SCRAM-SHA-1"] = "sha1"  # type: ignore[index]
    try:
        keys = scram_keys("SCRAM-SHA-1", "pencil", base64.b64decode("QSXCR+Q6sek8bf92"), 4096)
        first = read_client_first(b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL")
        said = server_first(first, keys, "3rfcNHYJY1ZVvWVs7j")
        assert said == "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
        final = (
            b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
        )
        assert server_final(first, said, keys, final) == b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="
    finally:
        del scram.HASHES["SCRAM-SHA-1"]  # type: ignore[attr-defined]
    assert dict(scram.HASHES) == hashes


def client_final(
    password: str, mechanism_name: str, first: bytes, said: bytes, binding: str = "biws"
) -> bytes:
    """A client's last message, from the RFC's formulas."""
    digest = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism_name]
    fields = dict(part.split("=", 1) for part in said.decode().split(","))
    salt, count = base64.b64decode(fields["s"]), int(fields["i"])
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, count)
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored = hashlib.new(digest, client_key).digest()
    without = f"c={binding},r={fields['r']}"
    message = f"{first.decode().removeprefix('n,,')},{said.decode()},{without}".encode()
    signature = hmac.digest(stored, message, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without},p={base64.b64encode(proof).decode()}".encode()


async def log_in(offered: ScramMechanism, user: str, password: str) -> Accepted:
    exchange = offered.begin(HERE)
    first = f"n,,n={user},r=abcdef".encode()
    challenge = await exchange.step(first)
    assert isinstance(challenge, Challenge)
    final = client_final(password, offered.name, first, challenge.data)
    accepted = await exchange.step(final)
    assert isinstance(accepted, Accepted)
    return accepted


async def test_sha_512() -> None:
    keys = scram_keys("SCRAM-SHA-512", "pencil", b"salt", 4096)
    offered = mechanism("SCRAM-SHA-512", Book(user=UserRecord("user", "", (KEYS, keys))))
    assert (await log_in(offered, "user", "pencil")).principal.name == "user"
    with pytest.raises(NotAuthenticated, match="wrong user or password"):
        await log_in(offered, "user", "pencil2")


async def test_nobody_learns_who_exists() -> None:
    users = Book(
        keyless=UserRecord("keyless"),
        off=UserRecord("off", "", (KEYS,), disabled=True),
    )
    offered = mechanism(users=users)
    for name in ("nobody", "keyless", "off"):
        answers = set()
        for _ in range(2):
            exchange = offered.begin(HERE)
            challenge = await exchange.step(f"n,,n={name},r=abcdef".encode())
            assert isinstance(challenge, Challenge)
            answers.add(challenge.data)
        assert len(answers) == 1, "a new salt each time would tell"
        with pytest.raises(NotAuthenticated, match="^wrong user or password$"):
            await log_in(offered, name, "pencil")


async def test_an_initial_response_may_come_later() -> None:
    exchange = mechanism().begin(HERE)
    assert await exchange.step(b"") == Challenge(b"")
    assert await exchange.step(FIRST) == Challenge(SAID.encode())


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=admin,n=user,r=abc",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=user",
        b"n,,n=user,r=",
        b"n,,n=user,r=a\x7f",
        b"\xff\xfe",
        b"n,,n=user,r=" + b"a" * 5000,
        b"x",
    ],
)
async def test_what_is_no_first_message(first: bytes) -> None:
    exchange = mechanism().begin(HERE)
    with pytest.raises(NotAuthenticated, match="SCRAM"):
        await exchange.step(first)
    with pytest.raises(NotAuthenticated, match="over"):
        await exchange.step(FIRST)


@pytest.mark.parametrize(
    "final",
    [
        FINAL.replace(b"c=biws", b"c=eSws"),  # another GS2 header: a downgrade
        FINAL.replace(b",r=rO", b",r=sO"),
        FINAL[:-4],
        FINAL.replace(b"p=dH", b"p=!!"),
        FINAL.rpartition(b",p=")[0],
        FINAL.rpartition(b",p=")[0] + b",p=" + base64.b64encode(b"short"),
        b"",
        b"\xff",
    ],
)
async def test_what_is_no_last_message(final: bytes) -> None:
    exchange = mechanism().begin(HERE)
    await exchange.step(FIRST)
    with pytest.raises(NotAuthenticated):
        await exchange.step(final)
    with pytest.raises(NotAuthenticated, match="over"):
        await exchange.step(FINAL)


async def test_a_header_that_was_changed_on_the_way_is_noticed() -> None:
    """The client said "y": it believes that the server has no channel binding (RFC 5802, 6)."""
    exchange = mechanism().begin(HERE)
    challenge = await exchange.step(FIRST)
    assert isinstance(challenge, Challenge)
    final = client_final("pencil", "SCRAM-SHA-256", FIRST, challenge.data, binding="eSws")
    with pytest.raises(NotAuthenticated, match="does not repeat how the exchange began"):
        await exchange.step(final)


async def test_a_replayed_proof_is_worth_nothing() -> None:
    offered = mechanism()
    offered.nonce = lambda: "another"
    exchange = offered.begin(HERE)
    await exchange.step(FIRST)
    with pytest.raises(NotAuthenticated, match="another nonce"):
        await exchange.step(FINAL)


async def test_names_may_hold_commas_and_equal_signs() -> None:
    users = Book({"a,b=c": UserRecord("a,b=c", "", (KEYS,))})
    assert (await log_in(mechanism(users=users), "a=2Cb=3Dc", "pencil")).principal.name == "a,b=c"


async def test_failures_are_counted_and_make_wait() -> None:
    attempts = Attempts(AttemptRules(2, 0))
    offered = mechanism(attempts=attempts)
    for _ in range(2):
        with pytest.raises(NotAuthenticated, match="wrong user"):
            await log_in(offered, "user", "wrong")
    with pytest.raises(NotAuthenticated, match="too many failed logins"):
        await log_in(offered, "user", "pencil")


@given(st.binary(max_size=100), st.binary(max_size=200))
async def test_no_bytes_break_an_exchange(first: bytes, final: bytes) -> None:
    exchange = mechanism().begin(HERE)
    for data in (first, final):
        try:
            assert isinstance(await exchange.step(data), Challenge)
        except NotAuthenticated:
            break


def test_keys_do_not_show() -> None:
    shown = repr(replace(KEYS)) + repr(UserRecord("u", "$argon2id$secret", (KEYS,)))
    assert "salt" not in shown and "secret" not in shown and "stored" not in shown
