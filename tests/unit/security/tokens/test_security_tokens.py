"""Goal: a token is what its issuer signed, for us, now; no trick with its header helps."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lakemq.broker_core.api.access import Credentials, Operation, Principal, Resource
from lakemq.broker_core.api.errors import ConfigError, NotAuthenticated
from lakemq.broker_core.api.types import NO_CONTEXT
from lakemq.broker_core.security.authn.tokens import TokenAuthenticator, token_of
from lakemq.broker_core.security.authz.rules import RuleSet
from lakemq.broker_core.security.settings import JwtSettings

RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
SECRET = b"0123456789abcdef0123456789abcdef"
EXP = 4_000_000_000
"""The year 2096: PyJWT looks at the wall clock."""


def public_pem(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def settings(folder: Path, key: Any = RSA, **more: Any) -> JwtSettings:
    if "jwks_file" not in more and "secret_file" not in more:
        path = folder / "key.pem"
        path.write_bytes(public_pem(key))
        more["key_file"] = str(path)
    return JwtSettings(kind="jwt", **more)


def signed(key: Any = RSA, algorithm: str = "RS256", headers: Any = None, **claims: Any) -> str:
    body = {"sub": "ann", "exp": EXP, **claims}
    body = {name: value for name, value in body.items() if value is not None}
    return jwt.encode(body, key, algorithm, headers)


async def judge(made: JwtSettings, token: str, client_id: str = "c", now_ms: int = 0) -> Principal:
    authenticator = TokenAuthenticator(made, lambda: now_ms)
    principal = await authenticator.authenticate(Credentials("mqtt", client_id, "h", token=token))
    assert principal is not None
    return principal


async def refused(made: JwtSettings, token: str, said: str, **more: Any) -> None:
    with pytest.raises(NotAuthenticated, match=said):
        await judge(made, token, **more)


async def test_claims_become_a_principal(tmp_path: Path) -> None:
    token = signed(roles="operator auditor", iss="acme")
    principal = await judge(settings(tmp_path, issuer="acme"), token)
    assert principal.name == "ann" and principal.roles == ("auditor", "operator")
    assert principal.expires_ms == EXP * 1000
    token = signed(name="bob", groups=["x"])
    made = settings(tmp_path, user_claim="name", roles_claim="groups", leeway_ms=1000)
    principal = await judge(made, token)
    assert (principal.name, principal.roles) == ("bob", ("x",))
    assert principal.expires_ms == EXP * 1000 + 1000


@pytest.mark.parametrize(
    ("key", "algorithm"), [(RSA, "RS256"), (RSA, "PS256"), (EC, "ES256"), (ED, "EdDSA")]
)
async def test_kinds_of_keys(tmp_path: Path, key: Any, algorithm: str) -> None:
    assert (await judge(settings(tmp_path, key), signed(key, algorithm))).name == "ann"


async def test_a_shared_secret(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    made = settings(tmp_path, secret_file=str(tmp_path / "secret"), algorithms=["HS256"])
    assert (await judge(made, signed(SECRET, "HS256"))).name == "ann"
    await refused(made, signed(SECRET + b"!", "HS256"), "signature is wrong")


async def test_none_and_confused_algorithms_are_refused(tmp_path: Path) -> None:
    made = settings(tmp_path)
    none = jwt.encode({"sub": "ann", "exp": EXP}, "", "none")
    await refused(made, none + "AA", "algorithm that is not allowed")
    for name in ("none", "None", "nOnE", "HS256", "RS384"):
        await refused(made, forged(name, public_pem(RSA)), "algorithm that is not allowed")
    # even where both are allowed, a public key is never a shared secret
    ec_pem = settings(tmp_path, EC, algorithms=["ES256", "RS256"])
    await refused(ec_pem, forged("RS256", public_pem(EC)), "no known key")


def forged(algorithm: str, secret: bytes) -> str:
    """A token signed by HMAC with what everybody knows: the public key."""
    parts = [{"alg": algorithm, "typ": "JWT"}, {"sub": "root", "exp": EXP}]
    text = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts
    )
    mac = hmac.digest(secret, text.encode(), hashlib.sha256)
    return f"{text}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


async def test_what_else_is_refused(tmp_path: Path) -> None:
    made = settings(tmp_path, issuer="acme", audience="lakemq", client_id_claim="device")
    good = {"iss": "acme", "aud": "lakemq", "device": "c"}
    assert (await judge(made, signed(**good))).name == "ann"
    await refused(made, signed(OTHER_RSA, **good), "signature is wrong")
    await refused(made, signed(**{**good, "exp": 1}), "expired")
    await refused(made, signed(**{**good, "exp": None}), "exp")
    await refused(made, signed(**{**good, "nbf": EXP}), "not yet valid")
    await refused(made, signed(**{**good, "aud": "other"}), "[Aa]udience")
    await refused(made, signed(**{**good, "aud": None}), "aud")
    await refused(made, signed(**{**good, "sub": None}), "names no user")
    await refused(made, signed(**{**good, "roles": 7}), "no list of names")
    await refused(made, signed(**good), "client id", client_id="other")
    await refused(settings(tmp_path), signed(aud="somebody"), "[Aa]udience")


async def test_a_token_of_another_issuer_is_left_to_others(tmp_path: Path) -> None:
    authenticator = TokenAuthenticator(settings(tmp_path, issuer="acme"), lambda: 0)
    shown = Credentials("native", "", "h", token=signed(iss="other"))
    assert await authenticator.authenticate(shown) is None
    assert authenticator.handles(shown), "but it makes nobody anonymous"


async def test_a_remembered_token_still_expires(tmp_path: Path) -> None:
    now_ms = [0]
    authenticator = TokenAuthenticator(settings(tmp_path), lambda: now_ms[0])
    shown = Credentials("native", "", "h", token=signed())
    assert await authenticator.authenticate(shown)
    now_ms[0] = EXP * 1000
    with pytest.raises(NotAuthenticated, match="expired"):
        await authenticator.authenticate(shown)


async def test_keys_are_read_again(tmp_path: Path) -> None:
    authenticator = TokenAuthenticator(settings(tmp_path), lambda: 0)
    shown = Credentials("native", "", "h", token=signed())
    assert await authenticator.authenticate(shown)
    (tmp_path / "key.pem").write_bytes(public_pem(OTHER_RSA))
    authenticator._keys._looked_s -= 2
    with pytest.raises(NotAuthenticated, match="signature"):
        await authenticator.authenticate(shown)


def jwks(folder: Path, *keys: dict[str, Any]) -> str:
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": keys}))
    return str(path)


def jwk(key: Any, **more: Any) -> dict[str, Any]:
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else None
    made = (kind or jwt.algorithms.ECAlgorithm).to_jwk(key.public_key(), as_dict=True)
    return {**made, **more}


async def test_a_key_set_picks_by_id_and_kind(tmp_path: Path) -> None:
    path = jwks(
        tmp_path,
        jwk(RSA, kid="one"),
        jwk(OTHER_RSA, kid="two", alg="RS256"),
        jwk(EC, kid="three"),
        {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET).decode(), "kid": "four"},
        {"kty": "unheard-of", "kid": "five"},
        jwk(RSA, kid="six", use="enc"),
    )
    made = settings(tmp_path, jwks_file=path)
    for key, algorithm, key_id in [
        (RSA, "RS256", "one"),
        (RSA, "PS256", "one"),
        (OTHER_RSA, "RS256", "two"),
        (EC, "ES256", "three"),
        (RSA, "RS256", None),
    ]:
        token = signed(key, algorithm, {"kid": key_id} if key_id else None)
        assert (await judge(made, token)).name == "ann"
    await refused(made, signed(RSA, "RS256", {"kid": "two"}), "signature is wrong")
    await refused(made, signed(OTHER_RSA, "PS256", {"kid": "two"}), "no known key")
    await refused(made, signed(RSA, "RS256", {"kid": "six"}), "no known key")
    await refused(made, signed(SECRET, "HS256", {"kid": "four"}), "not allowed")


async def test_rules_in_a_token(tmp_path: Path) -> None:
    token = signed(
        lakemq_rules=[{"operations": ["publish"], "resources": ["topic_name:d/%u/#"], "qos": [1]}]
    )
    principal = await judge(settings(tmp_path), token)
    rules = RuleSet([], unmatched_allows=True)
    context = NO_CONTEXT._replace(qos=1)
    mine = Resource("topic_name", "d/ann/1")
    assert rules.allows(principal, Operation.WRITE, mine, context)
    assert not rules.allows(principal, Operation.WRITE, mine, NO_CONTEXT._replace(qos=0))
    assert not rules.allows(principal, Operation.READ, mine, context)
    for wrong in ([], [7], [{"operations": ["publish"]}], "all", [{"resources": ["x"]}] * 300):
        await refused(settings(tmp_path), signed(lakemq_rules=wrong), "lakemq_rules are")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"nonsense", "no public key"),
        (RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), "no public key"),
        (public_pem(rsa.generate_private_key(65537, 1024)), "1024 bits"),
        (public_pem(ec.generate_private_key(ec.SECP384R1())), "a key for ES384; allowed are"),
    ],
)
def test_wrong_key_files_are_told_at_the_start(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "key").write_bytes(content)
    made = JwtSettings(kind="jwt", key_file=str(tmp_path / "key"))
    with pytest.raises(ConfigError, match=said):
        TokenAuthenticator(made, lambda: 0)


def test_wrong_sets_and_secrets_are_told_without_their_content(tmp_path: Path) -> None:
    secret = base64.urlsafe_b64encode(b"hunter2").decode()
    for keys in ([{"kty": "oct", "k": secret}], [{"k": secret}], []):
        made = JwtSettings(kind="jwt", jwks_file=jwks(tmp_path, *keys))
        with pytest.raises(ConfigError, match="holds no key") as caught:
            TokenAuthenticator(made, lambda: 0)
        assert secret not in str(caught.value)
    (tmp_path / "secret").write_bytes(b"hunter2")
    made = JwtSettings(kind="jwt", secret_file=str(tmp_path / "secret"), algorithms=["HS256"])
    with pytest.raises(ConfigError, match="HS256 has 32 bytes or more") as caught:
        TokenAuthenticator(made, lambda: 0)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"key_file": "k", "jwks_file": "j"},
        {"key_file": "k", "algorithms": ["HS256", "RS256"]},
        {"secret_file": "s"},
        {"key_file": "k", "algorithms": ["none"]},
        {"jwks_url": "https://a/keys", "jwks_file": "j"},
        {"jwks_url": "http://a/keys"},
        {"jwks_url": "https://"},
        {"jwks_url": "https://[a/keys"},
        {"jwks_url": "https://a/keys", "algorithms": ["HS256"]},
        {"discovery": True},
        {"discovery": True, "issuer": "acme"},
    ],
)
def test_settings_that_do_not_fit(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JwtSettings(kind="jwt", **wrong)


def test_a_token_may_stand_in_for_the_password() -> None:
    token = signed()
    assert token_of(Credentials("mqtt", "c", "h", "ann", token.encode())) == token
    assert token_of(Credentials("mqtt", "c", "h", "ann", b"eyJ but no token")) is None
    assert token_of(Credentials("mqtt", "c", "h", "ann", b"hunter2")) is None
    assert token_of(Credentials("native", "", "h", token="x.y." + "z" * 20_000)) is None


@given(st.text(alphabet="eyJhbGci.-_=0", max_size=80))
async def test_no_text_breaks_the_judge(text: str) -> None:
    authenticator = object.__new__(TokenAuthenticator)
    authenticator._settings = JwtSettings(kind="jwt", key_file="k")
    authenticator._allowed = frozenset({"RS256"})
    try:
        authenticator._verified(text, ())
    except NotAuthenticated:
        return
    raise AssertionError("it took that for a token")
