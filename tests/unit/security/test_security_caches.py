"""Goal: what is remembered decides no otherwise than what is asked for the first time, also when
too much is remembered and something had to be forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakemq.broker_core.access import Access
from lakemq.broker_core.api.access import (
    AccessContext,
    Credentials,
    Operation,
    Principal,
    Resource,
    Rule,
)
from lakemq.broker_core.api.errors import NotAuthenticated
from lakemq.broker_core.security import quotas
from lakemq.broker_core.security.authn import http_callback, passwords, tokens
from lakemq.broker_core.security.authn.attempts import AttemptRules, Attempts
from lakemq.broker_core.security.authn.certificates import CertificateAuthenticator, subject_parts
from lakemq.broker_core.security.authn.http_callback import HttpAuthenticator
from lakemq.broker_core.security.authn.passwords import PasswordChecker
from lakemq.broker_core.security.authn.tokens import TokenAuthenticator
from lakemq.broker_core.security.authn.users import UserRecord
from lakemq.broker_core.security.authz import rules
from lakemq.broker_core.security.authz.answers import Answers
from lakemq.broker_core.security.authz.rules import RuleSet
from lakemq.broker_core.security.quotas import Limits, Quotas, Use
from lakemq.broker_core.security.settings import CertificateSettings, HttpSettings
from tests.unit.security.tokens.test_security_tokens import settings, signed

CONTEXT = AccessContext("mqtt", "c1")


def token_from(client_id: str, token: str) -> Credentials:
    return Credentials("mqtt", client_id, "h", "ann", token.encode())


async def test_a_token_bound_to_a_client_id_is_no_others_once_it_was_used(tmp_path: Path) -> None:
    made = TokenAuthenticator(settings(tmp_path, client_id_claim="device"), lambda: 0)
    token = signed(device="c1")
    for _ in range(3):
        assert await made.authenticate(token_from("c1", token))
        with pytest.raises(NotAuthenticated, match="client id is not the token's device"):
            await made.authenticate(token_from("c2", token))


async def test_a_remembered_token_ends(tmp_path: Path) -> None:
    now_ms = 0
    made = TokenAuthenticator(settings(tmp_path), lambda: now_ms)
    token = signed()
    principal = await made.authenticate(token_from("c", token))
    assert principal is not None and principal.expires_ms is not None
    now_ms = principal.expires_ms - 1
    assert await made.authenticate(token_from("c", token)) == principal
    now_ms = principal.expires_ms
    with pytest.raises(NotAuthenticated, match="expired"):
        await made.authenticate(token_from("c", token))


async def test_forgotten_tokens_are_verified_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_KNOWN_MAX", 2)
    made = TokenAuthenticator(settings(tmp_path, client_id_claim="device"), lambda: 0)
    all_tokens = {f"c{number}": signed(device=f"c{number}") for number in range(5)}
    for _ in range(2):
        for client_id, token in all_tokens.items():
            assert await made.authenticate(token_from(client_id, token))
            wrong = token[:-4] + ("AAAA" if token[-4:] != "AAAA" else "BBBB")
            with pytest.raises(NotAuthenticated, match="signature"):
                await made.authenticate(token_from(client_id, wrong))
            with pytest.raises(NotAuthenticated, match="client id"):
                await made.authenticate(token_from("c9", token))
    assert len(made._known) == 2


async def test_forgotten_passwords_are_checked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_KNOWN_MAX", 2)
    monkeypatch.setattr(
        passwords, "verify", lambda record, password: password == record.name.encode()
    )
    checker = PasswordChecker(1, 10)
    users = [UserRecord(f"u{number}", f"$argon2id${number}") for number in range(4)]
    for _ in range(2):
        for user in users:
            assert await checker.check(user, user.name.encode())
            assert await checker.check(user, user.name.encode())
            assert not await checker.check(user, b"u0" if user.name != "u0" else b"u1")
    assert checker.hashed == 2 * 4 * 2, "each was forgotten before it came again"
    changed = UserRecord("u3", "$argon2id$new")
    monkeypatch.setattr(passwords, "verify", lambda record, password: False)
    assert await checker.check(users[3], b"u3"), "known"
    assert not await checker.check(changed, b"u3"), "another hash is another password"
    checker.close()


# -- answers of a web service


class Service:
    """Answers as `table` says, by (user, token); counts questions."""

    def __init__(self, authenticator: HttpAuthenticator, table: dict[str, str]) -> None:
        self.asked = 0
        self._table = table
        authenticator._calls.ask = self._ask  # type: ignore[method-assign]

    async def _ask(self, body: Any) -> tuple[int, bytes]:
        self.asked += 1
        result = self._table.get(body.get("username", ""), "deny")
        return 200, b'{"result": "%s"}' % result.encode()


async def test_a_web_services_answers_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_callback, "_KNOWN_MAX", 2)
    now_ms = 0
    made = HttpAuthenticator(
        HttpSettings(kind="http", url="http://127.0.0.1:1", cache_ms=1000), lambda: now_ms, {}
    )
    service = Service(made, {"ann": "allow", "bob": "ignore"})

    async def outcome(user: str, password: bytes = b"x") -> str:
        try:
            found = await made.authenticate(Credentials("mqtt", "c", "h", user, password))
        except NotAuthenticated:
            return "no"
        return found.name if found is not None else "next"

    for _ in range(2):
        assert [await outcome("ann") for _ in range(2)] == ["ann", "ann"]
        assert [await outcome("bob") for _ in range(2)] == ["next", "next"]
        assert [await outcome("eve") for _ in range(2)] == ["no", "no"]
    assert service.asked == 6, "of three only two are kept"
    assert await outcome("ann", b"another") == "ann"
    assert service.asked == 7, "another password is another question"
    now_ms = 1000
    assert await outcome("ann", b"another") == "ann" and service.asked == 8
    await made.close()


async def test_an_answer_that_names_nobody_is_about_who_asked() -> None:
    """Though the service is told only the token, which two share."""
    made = HttpAuthenticator(
        HttpSettings(kind="http", url="http://127.0.0.1:1", body={"token": "{token}"}),
        lambda: 0,
        {},
    )
    Service(made, {"": "allow"})
    for name in ("ann", "bob", "ann"):
        found = await made.authenticate(Credentials("native", "", "h", name, b"x", token="t"))
        assert found is not None and found.name == name
    await made.close()


def test_answers_about_publishes_go_by_client_and_end() -> None:
    answers: Answers[bool] = Answers(2, 3)
    for number in range(4):
        answers.put("busy", (f"t{number}",), True, 1000)
    answers.put("quiet", ("t0",), False, 1000)
    assert answers.get("busy", ("t0",), 0) is None and answers.get("busy", ("t3",), 0) == (True,)
    assert answers.get("quiet", ("t0",), 0) == (False,)
    assert answers.get("quiet", ("t0",), 1000) is None
    answers.put("third", ("t0",), True, 1000)
    assert answers.get("busy", ("t3",), 0) is None, "all together are too many: the oldest client"
    assert answers.get("quiet", ("t0",), 0) == (False,) and len(answers) == 2


# -- rules, quotas, certificates


def test_rules_that_were_dropped_from_the_cache_are_the_same_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "_CACHED_MAX", 3)
    made = RuleSet(
        [
            Rule(("any",), ("read",), "topic_name", "d/%u/%c"),
            Rule(("role:ops",), ("all",), "any", "*"),
            Rule(("user:u1",), ("all",), "topic_name", "d/#", False),
        ],
        unmatched_allows=False,
    )
    own = (Rule(("any",), ("write",), "topic_name", "x"),)
    for _ in range(3):
        for number in range(6):
            name = f"u{number}"
            plain, ops = Principal(name), Principal(name, roles=("ops",))
            bearer = Principal(name, rules=own)
            mine = Resource("topic_name", f"d/{name}/c1")
            read, write = Operation.READ, Operation.WRITE
            assert made.allows(plain, read, mine, CONTEXT) is (number != 1)
            assert not made.allows(plain, read, mine, CONTEXT._replace(client_id="c2"))
            assert not made.allows(plain, write, mine, CONTEXT)
            assert made.allows(ops, write, mine, CONTEXT) is (number != 1)
            assert made.allows(bearer, write, Resource("topic_name", "x"), CONTEXT)
            assert not made.allows(plain, write, Resource("topic_name", "x"), CONTEXT)
            stranger = Principal(name, "anonymous")
            assert not made.allows(stranger, write, mine, CONTEXT)
            assert len(made._relevant) <= 3


def test_the_debt_of_a_busy_principal_outlives_that_of_the_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "PRINCIPALS_MAX", 3)
    made = Quotas({"any": Limits(bytes_in_per_s=1000)})
    busy = Principal("busy")
    assert made.charge(busy, Use(bytes_in=10_000), 0) > 0
    for number in range(10):
        made.charge(Principal(f"quiet-{number}"), Use(bytes_in=1), 0)
        assert made.charge(busy, Use(), 0) >= 9000, number
    assert len(made._buckets) == 3


def test_attempts_of_the_longest_quiet_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakemq.broker_core.security.authn.attempts.ENTRIES_MAX", 6)
    attempts = Attempts(AttemptRules(2, 0, 1000, 1000, 60_000))
    for _ in range(2):
        attempts.failed("guesser", "ann", 0)
    for number in range(20):
        attempts.failed(f"h{number}", "bob", 0)
        attempts.failed("guesser", "ann", 0)
        assert attempts.wait_ms("guesser", "ann", 0) > 0, number


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=\\ admin", " admin"),
        ("CN=admin\\ ", "admin "),
        ("CN=\\ \\ admin\\ ,O=Acme", "  admin "),
        ("O=Acme,CN=\\20admin", "20admin"),
        ("CN=\\,admin", ",admin"),
        ("CN=admin", "admin"),
    ],
)
async def test_blanks_of_a_certificates_name_are_part_of_it(subject: str, name: str) -> None:
    """`" admin"` is not `admin`: an authority may have signed the one for anybody."""
    assert dict(subject_parts(subject))["CN"] == name
    made = CertificateAuthenticator(CertificateSettings(kind="certificate"))
    shown = Credentials("mqtt", "c", "h", certificate_subject=subject)
    for _ in range(2):
        found = await made.authenticate(shown)
        assert found is not None and found.name == name


async def test_an_access_remembers_nothing_of_its_own() -> None:
    """Credentials that were taken once are judged again."""
    taken = [Principal("ann"), None, Principal("bob")]

    class Turns:
        async def authenticate(self, credentials: Credentials) -> Principal | None:
            return taken.pop(0)

    access = Access([Turns()], [], anonymous="never")
    shown = Credentials("mqtt", "c", "h", "x", b"y")
    assert (await access.authenticate(shown)).name == "ann"
    with pytest.raises(NotAuthenticated):
        await access.authenticate(shown)
    assert (await access.authenticate(shown)).name == "bob"
