"""Goal: passwords are kept as argon2id and SCRAM keys and checked beside the loop; guessing is
slow."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.access import Access
from lakemq.broker_core.api.access import Credentials, Principal
from lakemq.broker_core.api.errors import (
    ConfigError,
    InvalidRequest,
    NotAuthenticated,
    Unavailable,
)
from lakemq.broker_core.security.authn import passwords
from lakemq.broker_core.security.authn.attempts import ENTRIES_MAX, AttemptRules, Attempts
from lakemq.broker_core.security.authn.password_users import FileUsers, PasswordAuthenticator
from lakemq.broker_core.security.authn.passwords import (
    PasswordChecker,
    hash_of_no_password,
    is_password_hash,
    password_hash,
)
from lakemq.broker_core.security.authn.scram import scram_keys
from lakemq.broker_core.security.authn.users import UserRecord, read_users, user_line

NEVER_WAIT = AttemptRules(0, 0)
HASH = password_hash("correct horse")
KEYS = scram_keys("SCRAM-SHA-256", "correct horse", b"salt", 4096)
ANN = UserRecord("ann", HASH, (KEYS,), ("operator", "auditor"))


def shown(username: str | None, password: bytes | None, host: str = "10.0.0.1") -> Credentials:
    return Credentials("mqtt", "c", host, username, password)


def file_of(folder: Path, *users: UserRecord) -> Path:
    path = folder / "users"
    path.write_text("# users\n\n" + "".join(f"{user_line(user)}\n" for user in users))
    return path


def access(path: Path, rules: AttemptRules = NEVER_WAIT) -> Access:
    checker = PasswordChecker(1, 10)
    authenticator = PasswordAuthenticator(FileUsers(str(path)), checker)
    return Access([authenticator], [], attempts=Attempts(rules), now_ms=lambda: 0)


# -- the file


def test_a_line_holds_all_of_a_user() -> None:
    assert read_users(user_line(ANN)) == {"ann": ANN}
    assert HASH.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert is_password_hash(HASH) and not is_password_hash("$2b$12$abc")


def test_a_hash_of_no_password_is_checked_as_others_are() -> None:
    made = hash_of_no_password()
    assert made.split("$")[:4] == HASH.split("$")[:4] and len(made) == len(HASH)
    assert made != hash_of_no_password()
    with pytest.raises(VerifyMismatchError):  # not InvalidHashError: argon2 did all of its work
        PasswordHasher().verify(made, b"guess")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ann\nann\n", "line 2: user ann stands in two lines"),
        ("ann hunter2\n", "line 1: user ann: part 2 is neither"),
        ("ann roles=a/b\n", "line 1: role 'a/b'"),
        (
            "ann SCRAM-SHA-256$4096:c2FsdA==$aaaa:bbbb\n",
            "line 1: SCRAM keys of SCRAM-SHA-256 have",
        ),
        ("ann SCRAM-SHA-256$4096:!$aa:bb\n", "line 1: SCRAM keys are not base64"),
        ("ann SCRAM-SHA-1$4096:aa$aa:bb\n", "line 1: SCRAM keys are SCRAM-SHA-256"),
        (f"{'a' * 250}\n", "line 1: a user name has 1 to 249"),
    ],
)
def test_a_wrong_line_is_named_without_its_secrets(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_users(text)
    assert str(caught.value).startswith(said)
    assert "hunter2" not in str(caught.value)


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        read_users(text)
    except InvalidRequest as error:
        assert str(error).startswith("line ")


def test_a_missing_or_wrong_file_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"users: No such file"):
        FileUsers(str(tmp_path / "users"))
    (tmp_path / "users").write_text("ann hunter2")
    with pytest.raises(ConfigError, match=r"users: password file, line 1"):
        FileUsers(str(tmp_path / "users"))


def test_a_changed_file_is_read_again_and_a_broken_one_is_not(tmp_path: Path) -> None:
    path = file_of(tmp_path, ANN)
    users = FileUsers(str(path))
    file_of(tmp_path, ANN, UserRecord("bob"))
    assert users.find("bob") is not None  # who is not known is looked for anew
    file_of(tmp_path, ANN, UserRecord("bob", roles=("auditor",)))
    users._file._looked_s -= 2
    bob = users.find("bob")
    assert bob is not None and bob.roles == ("auditor",)
    path.write_text("nonsense nonsense")
    users._file._looked_s -= 2
    assert users.find("bob") is not None
    os.unlink(path)
    users._file._looked_s -= 2
    ann = users.find("ann")
    assert ann is not None and ann.password_hash == HASH


# -- passwords


async def test_right_and_wrong_passwords(tmp_path: Path) -> None:
    scram_only = UserRecord("bob", "", (KEYS,))
    made = access(file_of(tmp_path, ANN, scram_only, UserRecord("nopass")))
    principal = await made.authenticate(shown("ann", b"correct horse"))
    kept = {"kept_by": "password_file"}
    assert principal == Principal("ann", attributes=kept, roles=("auditor", "operator"))
    assert (await made.authenticate(shown("bob", b"correct horse"))).name == "bob"
    for name, password in [
        ("ann", b"correct hors"),
        ("ann", b""),
        ("ann", None),
        ("bob", b"\xff"),
        ("nopass", b""),
        ("nobody", b"correct horse"),
        ("ann", b"x" * 5000),
    ]:
        for host in ("10.0.0.1", "127.0.0.1"):
            with pytest.raises(NotAuthenticated, match="^wrong user or password$"):
                await made.authenticate(shown(name, password, host))
    assert (await made.authenticate(shown(None, None, "127.0.0.1"))).kind == "anonymous"
    assert (made.accepted, made.refused) == (3, 14)


async def test_disabled_users_are_refused_like_wrong_passwords() -> None:
    class One:
        def find(self, name: str) -> UserRecord | None:
            return UserRecord("ann", HASH, disabled=True)

        def any_known(self) -> bool:
            return True

    authenticator = PasswordAuthenticator(One(), PasswordChecker(1, 10))
    with pytest.raises(NotAuthenticated, match="^wrong user or password$"):
        await authenticator.authenticate(shown("ann", b"correct horse"))


async def test_a_right_password_is_known_again_until_its_hash_changes() -> None:
    checker = PasswordChecker(1, 10)
    for _ in range(3):
        assert await checker.check(ANN, b"correct horse")
    assert checker.hashed == 1
    assert not await checker.check(ANN, b"wrong")
    assert not await checker.check(ANN, b"wrong")
    assert checker.hashed == 3, "a wrong password costs its time each time"
    other = UserRecord("ann", password_hash("another"))
    assert not await checker.check(other, b"correct horse")
    checker.close()


async def test_nobody_takes_as_long_as_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    verified = []
    real = passwords.verify
    monkeypatch.setattr(
        passwords, "verify", lambda record, word: verified.append(record) or real(record, word)
    )
    checker = PasswordChecker(1, 10)
    assert not await checker.check(None, b"correct horse")
    assert len(verified) == 1 and verified[0].password_hash.startswith("$argon2id$")
    checker.close()


async def test_a_storm_of_logins_waits_in_a_bounded_line() -> None:
    checker = PasswordChecker(1, 3)
    outcomes = await asyncio.gather(
        *(checker.check(ANN, b"wrong") for _ in range(10)), return_exceptions=True
    )
    assert sum(outcome is False for outcome in outcomes) == 3
    assert sum(isinstance(outcome, Unavailable) for outcome in outcomes) == 7
    assert checker.refused == 7
    assert await checker.check(ANN, b"correct horse"), "and then goes on"
    checker.close()


# -- guessing


def test_waits_double_up_to_a_bound_and_end() -> None:
    attempts = Attempts(AttemptRules(3, 0, 1000, 4000, 60_000))
    now_ms, waits = 0, []
    for _ in range(7):
        attempts.failed("h", "ann", now_ms)
        waits.append(attempts.wait_ms("h", "ann", now_ms))
        now_ms += waits[-1]
        assert attempts.wait_ms("h", "ann", now_ms) == 0
    assert waits == [0, 0, 1000, 2000, 4000, 4000, 4000]
    attempts.failed("h", "ann", now_ms + 60_001)
    assert attempts.wait_ms("h", "ann", now_ms + 60_001) == 0, "old failures are forgotten"


def test_one_address_does_not_lock_out_another_but_many_names_lock_the_address() -> None:
    attempts = Attempts(AttemptRules(3, 5, 1000, 4000, 60_000))
    for name in ("ann", "ann", "ann", "bob", "cid"):
        attempts.failed("h", name, 0)
    assert attempts.wait_ms("h", "dan", 0) == 1000
    assert attempts.wait_ms("other", "ann", 0) == 0
    attempts.succeeded("h", "ann")
    assert attempts.wait_ms("h", "ann", 0) == 1000, "success with one name frees no others"


def test_attempts_are_remembered_in_bounded_memory() -> None:
    attempts = Attempts(AttemptRules())
    for number in range(ENTRIES_MAX):
        attempts.failed(f"h{number}", "ann", 0)
    assert len(attempts._counts) == ENTRIES_MAX


async def test_guesses_at_the_same_time_count_like_guesses_in_turn(tmp_path: Path) -> None:
    made = access(file_of(tmp_path, ANN), AttemptRules(2, 0))
    guesses = [b"1", b"2", b"correct horse"]
    outcomes = await asyncio.gather(
        *(made.authenticate(shown("ann", guess)) for guess in guesses), return_exceptions=True
    )
    assert all(isinstance(each, NotAuthenticated) for each in outcomes)
    with pytest.raises(NotAuthenticated, match="too many failed logins; try again in 1 s"):
        await made.authenticate(shown("ann", b"correct horse"))
