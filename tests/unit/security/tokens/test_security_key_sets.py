"""Goal: keys by URL follow the issuer's, and neither an issuer that is away nor a client that makes
up key ids does harm."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from lakemq.broker_core.api.access import Credentials, Principal
from lakemq.broker_core.api.errors import NotAuthenticated, Unavailable
from lakemq.broker_core.security.authn import key_sets
from lakemq.broker_core.security.authn.tokens import TokenAuthenticator
from lakemq.broker_core.security.http_calls import ANSWER_MAX_BYTES, NoAnswer
from lakemq.broker_core.security.settings import JwtSettings

KEYS = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("one", "two", "made-up")}
URL = "https://acme.org/keys"
DOCUMENT = "https://acme.org/.well-known/openid-configuration"


def key_set(*names: str) -> bytes:
    made = [
        jwt.algorithms.ECAlgorithm.to_jwk(KEYS[each].public_key(), as_dict=True) for each in names
    ]
    return json.dumps(
        {"keys": [{**key, "kid": name} for key, name in zip(made, names, strict=True)]}
    ).encode()


def token(name: str, **claims: Any) -> str:
    body = {"sub": "ann", "exp": 4_000_000_000, "iss": "https://acme.org", **claims}
    return jwt.encode(body, KEYS[name], "ES256", {"kid": name})


class Issuer:
    """Pages by URL; a URL without one does not answer."""

    def __init__(self, **settings: Any) -> None:
        self.pages: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.now_s = 1000.0
        made = JwtSettings(kind="jwt", issuer="https://acme.org", **settings)
        self.authenticator = TokenAuthenticator(made, lambda: 0, self.ask)
        keys = self.authenticator._fetched
        assert keys is not None
        keys._now_s = lambda: self.now_s
        self.keys = keys

    async def ask(self, url: str) -> tuple[int, bytes]:
        self.asked.append(url)
        if url not in self.pages:
            raise NoAnswer("ConnectionRefusedError")
        return self.pages[url]

    async def judge(self, shown: str) -> Principal | None:
        return await self.authenticator.authenticate(Credentials("mqtt", "c", "h", token=shown))


@pytest.fixture
def issuer() -> Issuer:
    return Issuer(jwks_url=URL)


async def test_a_new_key_is_fetched_when_a_token_names_it(issuer: Issuer) -> None:
    issuer.pages[URL] = 200, key_set("one")
    assert (await issuer.judge(token("one"))) is not None
    issuer.now_s += 20
    issuer.pages[URL] = 200, key_set("one", "two")
    assert (await issuer.judge(token("two"))) is not None
    assert (await issuer.judge(token("one"))) is not None and len(issuer.asked) == 2
    # Gone from the set: what it had verified counts no more.
    issuer.pages[URL] = 200, key_set("two")
    await issuer.keys._fetch()
    with pytest.raises(NotAuthenticated, match="no known key"):
        await issuer.judge(token("one"))


async def test_made_up_key_ids_cause_no_traffic(issuer: Issuer) -> None:
    issuer.pages[URL] = 200, key_set("one")
    for _ in range(50):
        with pytest.raises(NotAuthenticated, match="no known key"):
            await issuer.judge(token("made-up"))
    assert len(issuer.asked) == 1
    issuer.now_s += key_sets.RENEW_EVERY_S
    with pytest.raises(NotAuthenticated):
        await issuer.judge(token("made-up"))
    assert len(issuer.asked) == 2
    # Of another issuer: its own authenticator's business, whatever our issuer does.
    assert await issuer.judge(token("made-up", iss="https://other.org")) is None


async def test_an_issuer_that_is_away(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Unavailable, match="not here yet"):  # not "wrong": the client may come again
        await issuer.judge(token("one"))
    issuer.now_s += 20
    issuer.pages[URL] = 200, key_set("one")
    assert (await issuer.judge(token("one"))) is not None
    for wrong in ((500, b""), (200, b"<html>"), (200, b"x" * (ANSWER_MAX_BYTES + 1)),
                  (200, b'{"keys": []}'), (302, key_set("two"))):  # fmt: skip
        issuer.pages[URL] = wrong
        await issuer.keys._fetch()
        assert (await issuer.judge(token("one"))) is not None
    del issuer.pages[URL]
    caplog.clear()
    await issuer.keys._fetch()
    await issuer.keys._fetch()
    [told] = [each.getMessage() for each in caplog.records]
    assert "those of before stay in use" in told and URL in told


async def test_discovery(caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer(discovery=True)
    issuer.pages[URL] = 200, key_set("one")

    async def told(document: Any) -> str:
        issuer.now_s += 20
        issuer.pages[DOCUMENT] = 200, json.dumps(document).encode()
        caplog.clear()
        with pytest.raises(Unavailable):
            await issuer.judge(token("one"))
        return caplog.text

    document = {"issuer": "https://acme.org", "jwks_uri": URL}
    assert "document of issuer 'https://evil.org'" in await told(
        {**document, "issuer": "https://evil.org"}
    )
    assert "is not https" in await told({**document, "jwks_uri": "http://acme.org/keys"})
    assert "not a discovery document" in await told([])
    for wrong in ({"issuer": "https://acme.org"}, None, 7):
        await told(wrong)
    assert URL not in issuer.asked
    issuer.now_s += 20
    issuer.pages[DOCUMENT] = 200, json.dumps(document).encode()
    assert (await issuer.judge(token("one"))) is not None
    assert issuer.asked[-2:] == [DOCUMENT, URL]
