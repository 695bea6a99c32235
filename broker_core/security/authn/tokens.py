"""JSON Web Tokens: selects the key, has PyJWT check the signature, and maps claims to a principal.

A key is used with the algorithms of its own kind only, whatever the token's header says, so that a
public key can't be used as a shared secret (RFC 8725, sections 3.1 and 3.2); `none` is never
accepted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate
from pydantic import ValidationError

from lakemq.broker_core.api.access import Rule
from lakemq.broker_core.api.errors import InvalidRequest, NotAuthenticated, Unavailable
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.tls_files.watched_files import WatchedFiles
from lakemq.broker_core.api.types import Principal
from lakemq.broker_core.security.authn.attempts import ExpiredToken
from lakemq.broker_core.security.authn.key_sets import Ask, FetchedKeys
from lakemq.broker_core.security.settings import JwtSettings, RuleSettings
from lakemq.broker_core.security.watched_file import watched_file

TOKEN_MAX_BYTES: Final = 16 * 1024
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]*")
_RULES_MAX: Final = 200
_KEYS_MAX: Final = 100
_KNOWN_MAX: Final = 10_000
_RSA_BITS_MIN: Final = 2048
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


@dataclass(frozen=True, slots=True)
class Key:
    """One key, and the algorithms that fit it."""

    value: Any = field(repr=False)
    algorithms: frozenset[str]
    key_id: str | None = None


class _UnknownKey(NotAuthenticated):
    """Perhaps the issuer has a new key."""


class TokenAuthenticator:
    """Authenticates clients by the tokens of one issuer."""

    needs_credentials = True

    def __init__(
        self, settings: JwtSettings, now_ms: Callable[[], int], ask: Ask | None = None
    ) -> None:
        """`ask`: how URLs are asked in place of HTTP."""
        self._fetched: FetchedKeys[Key] | None = None
        self._keys: WatchedFiles[Sequence[Key]] | FetchedKeys[Key]
        self._settings = settings
        self._now_ms = now_ms
        self._allowed = frozenset(settings.algorithms)
        if settings.secret_file:
            self._keys = watched_file(settings.secret_file, self._read_secret)
        elif settings.key_file:
            self._keys = watched_file(settings.key_file, self._read_key)
        elif settings.jwks_file:
            self._keys = watched_file(settings.jwks_file, self._read_set)
        else:
            self._keys = self._fetched = FetchedKeys(settings, self._read_set, ask=ask)
        self._known: OrderedDict[bytes, tuple[Sequence[Key], Principal, dict[str, Any]]]
        self._known = OrderedDict()

    def handles(self, credentials: Credentials) -> bool:
        """Whether there is a token."""
        return token_of(credentials) is not None

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """None when there is no token, or it is another issuer's."""
        token = token_of(credentials)
        if token is None:
            return None
        keys = self._keys.current()
        # A hash as key, so that no tokens are kept in memory for the cache's sake.
        mark = hashlib.sha256(token.encode()).digest()
        known = self._known.get(mark)
        # Keys that were read again are another object: what an old key had verified is verified
        # again.
        if known is None or known[0] is not keys:
            try:
                found = self._verified(token, keys)
            except _UnknownKey:
                keys = await self._renewed(keys)
                found = self._verified(token, keys)
            if found is None:
                return None
            known = (keys, *found)
            self._known[mark] = known
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        _, principal, claims = known
        if principal.expires_ms is not None and principal.expires_ms <= self._now_ms():
            raise ExpiredToken("the token has expired")
        self._check_client_id(credentials, claims)
        return principal

    async def start(self) -> None:
        """Fetch keys that have a URL."""
        if self._fetched is not None:
            await self._fetched.start()

    async def close(self) -> None:
        """End what fetches them."""
        if self._fetched is not None:
            await self._fetched.close()

    async def _renewed(self, keys: Sequence[Key]) -> Sequence[Key]:
        """The keys once the issuer was asked again. Raises Unavailable while there are none."""
        if self._fetched is None or await self._fetched.renewed(keys):
            return self._keys.current()
        if not keys:
            raise Unavailable("the issuer's keys are not here yet; try again")
        return keys

    def _verified(self, token: str, keys: Sequence[Key]) -> tuple[Principal, dict[str, Any]] | None:
        settings = self._settings
        try:
            header = jwt.get_unverified_header(token)
            if settings.issuer:
                # Only to tell whose token it is; nothing of it counts before the signature is
                # checked.
                unverified = jwt.decode_complete(token, options={"verify_signature": False})
                if unverified["payload"].get("iss") != settings.issuer:
                    return None
        except (jwt.PyJWTError, RecursionError, ValueError):
            raise NotAuthenticated("the token is malformed") from None
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._allowed:
            raise NotAuthenticated("the token is signed with an algorithm that is not allowed")
        fitting = [
            key
            for key in keys
            if algorithm in key.algorithms
            and (key.key_id is None or header.get("kid") in (None, key.key_id))
        ]
        if not fitting:
            raise _UnknownKey("no known key fits the token's algorithm and key id")
        claims = self._claims(token, algorithm, fitting)
        return self._principal(claims), claims

    def _claims(self, token: str, algorithm: str, keys: Sequence[Key]) -> dict[str, Any]:
        settings = self._settings
        error: Exception | None = None
        for key in keys:
            try:
                return jwt.decode(
                    token,
                    key.value,
                    algorithms=[algorithm],
                    issuer=settings.issuer or None,
                    audience=settings.audience or None,
                    leeway=settings.leeway_ms / 1000,
                    options={"require": ["exp"]},
                )
            except jwt.InvalidSignatureError as wrong:
                error = wrong
            except jwt.ExpiredSignatureError:
                raise ExpiredToken("the token has expired") from None
            except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as wrong:
                raise NotAuthenticated(f"token refused: {_words(wrong)}") from None
        raise NotAuthenticated("the token's signature is wrong") from error

    def _principal(self, claims: dict[str, Any]) -> Principal:
        settings = self._settings
        name = claims.get(settings.user_claim)
        if not isinstance(name, str) or not 1 <= len(name) <= 1024:
            raise NotAuthenticated(f"the token's {settings.user_claim} names no user")
        roles = claims.get(settings.roles_claim, [])
        if isinstance(roles, str):
            roles = roles.split()
        if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
            raise NotAuthenticated(f"the token's {settings.roles_claim} are no list of names")
        return Principal(
            name,
            attributes={"issuer": str(claims.get("iss", ""))},
            roles=tuple(sorted(set(roles))),
            rules=_rules(claims.get(settings.rules_claim), settings.rules_claim),
            expires_ms=int(claims["exp"]) * 1000 + settings.leeway_ms,
        )

    def _check_client_id(self, credentials: Credentials, claims: dict[str, Any]) -> None:
        claim = self._settings.client_id_claim
        if claim and credentials.protocol == "mqtt" and claims.get(claim) != credentials.client_id:
            raise NotAuthenticated(f"the client id is not the token's {claim}")

    # -- keys

    def _read_secret(self, data: bytes) -> Sequence[Key]:
        secret = data.removesuffix(b"\n").removesuffix(b"\r")
        # RFC 7518, section 3.2: a key as long as the hash output, or longer.
        longest = max(int(name[2:]) for name in self._allowed) // 8
        if len(secret) < longest:
            raise InvalidRequest(f"a secret for HS{longest * 8} has {longest} bytes or more")
        return (Key(secret, self._allowed),)

    def _read_key(self, data: bytes) -> Sequence[Key]:
        try:
            if b"BEGIN CERTIFICATE" in data:
                public: Any = load_pem_x509_certificate(data).public_key()
            else:
                public = load_pem_public_key(data)
        except ValueError:
            raise InvalidRequest("it holds no public key (PEM)") from None
        return (self._fitted(Key(public, _algorithms_of(public))),)

    def _read_set(self, data: bytes) -> Sequence[Key]:
        try:
            entries = json.loads(data)["keys"]
        except (ValueError, KeyError, TypeError):
            raise InvalidRequest("not a JSON Web Key Set") from None
        if not isinstance(entries, list) or len(entries) > _KEYS_MAX:
            raise InvalidRequest(f"a JSON Web Key Set of at most {_KEYS_MAX} keys is wanted")
        keys = [key for entry in entries if (key := _key_of(entry)) is not None]
        fitting = tuple(
            Key(key.value, key.algorithms & self._allowed, key.key_id)
            for key in keys
            if key.algorithms & self._allowed
        )
        if not fitting:
            allowed = ", ".join(sorted(self._allowed))
            raise InvalidRequest(f"it holds no key for {allowed}")
        return fitting

    def _fitted(self, key: Key) -> Key:
        """The key with those of its algorithms that are allowed; some must be."""
        fitting = key.algorithms & self._allowed
        if not fitting:
            raise InvalidRequest(
                f"a key for {', '.join(sorted(key.algorithms)) or 'nothing known'}; allowed are "
                f"{', '.join(sorted(self._allowed))}"
            )
        return Key(key.value, fitting, key.key_id)


def token_of(credentials: Credentials) -> str | None:
    """The token among the credentials: the bearer's, or a password that looks like one."""
    if credentials.token is not None:
        token = credentials.token
    elif credentials.password is not None and credentials.password.startswith(b"eyJ"):
        token = credentials.password.decode("utf-8", "replace")
    else:
        return None
    return token if len(token) <= TOKEN_MAX_BYTES and _TOKEN.fullmatch(token) else None


def _key_of(entry: Any) -> Key | None:
    """A key of a set; None: it is not for signatures, or of a kind that is not known here. What
    PyJWT says is never repeated: it may hold the key."""
    try:
        if entry.get("use", "sig") != "sig":
            return None
        each = jwt.PyJWK(entry)
    except (AttributeError, TypeError, ValueError, jwt.PyJWTError):
        return None
    value = each.key
    if isinstance(value, bytes):
        algorithms = frozenset(
            name for name in ("HS256", "HS384", "HS512") if len(value) * 8 >= int(name[2:])
        )
    else:
        value = value.public_key() if hasattr(value, "public_key") else value
        algorithms = _algorithms_of(value)
    declared = entry.get("alg")
    if declared is not None:
        algorithms &= {declared}
    return Key(value, algorithms, each.key_id)


def _algorithms_of(public: Any) -> frozenset[str]:
    if isinstance(public, rsa.RSAPublicKey):
        # RFC 7518, section 3.3: 2048 bits or larger.
        if public.key_size < _RSA_BITS_MIN:
            raise InvalidRequest(f"an RSA key of {public.key_size} bits; {_RSA_BITS_MIN} at least")
        return frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
    if isinstance(public, ec.EllipticCurvePublicKey):
        name = _CURVES.get(public.curve.name)
        return frozenset({name} if name else ())
    if isinstance(public, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
        return frozenset({"EdDSA"})
    return frozenset()


def _rules(claim: Any, name: str) -> tuple[Rule, ...]:
    if claim is None:
        return ()
    if not isinstance(claim, list) or not 0 < len(claim) <= _RULES_MAX:
        raise NotAuthenticated(f"the token's {name} are no list of 1 to {_RULES_MAX} rules")
    try:
        made = [RuleSettings.model_validate({**each, "who": ["any"]}) for each in claim]
    except (ValidationError, TypeError):
        raise NotAuthenticated(f"the token's {name} are wrong") from None
    return tuple(rule for each in made for rule in each.rules())


def _words(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text[0].lower() + text[1:]
