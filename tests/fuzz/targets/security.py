"""What somebody shows who is not known yet, and the files of users and rules."""

from __future__ import annotations

import base64
import contextlib
import hmac
import itertools
import json
import tempfile
from pathlib import Path

import jwt

from lakemq.broker_core.api.access import (
    AccessContext,
    Credentials,
    Operation,
    Principal,
    Resource,
    Rule,
)
from lakemq.broker_core.api.authorization_header import read_authorization
from lakemq.broker_core.api.errors import ConfigError, InvalidRequest, NotAuthenticated
from lakemq.broker_core.api.topic_filters import covers, is_filter, levels_of, overlaps
from lakemq.broker_core.security.authn.certificates import subject_parts
from lakemq.broker_core.security.authn.scram import (
    read_client_first,
    scram_keys,
    server_final,
    server_first,
)
from lakemq.broker_core.security.authn.session_tokens import PREFIX, SessionTokens
from lakemq.broker_core.security.authn.tokens import TokenAuthenticator, token_of
from lakemq.broker_core.security.authn.users import UserRecord, read_users, user_line
from lakemq.broker_core.security.authz.rule_book import _reader as rules_reader
from lakemq.broker_core.security.authz.rules import RuleSet, check_rule
from lakemq.broker_core.security.catalog_forms import acl_rules_of, limits_of, rule_of
from lakemq.broker_core.security.settings import JwtSettings
from lakemq.meta_service.api.auth import Quota
from lakemq.plugins.native.sdk.net.scram_client import ScramClient
from tests.fuzz.registry import Values, pieces, target

KEYS = scram_keys("SCRAM-SHA-256", "pencil", b"salt", 4096)
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SAID = server_first(read_client_first(FIRST), KEYS, "server")
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqOserver,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="


def _text(data: bytes) -> str:
    """As a header comes: what is no UTF-8 is there as surrogates."""
    return data.decode("utf-8", "surrogateescape")


@target(
    "security.scram",
    seeds=[
        FIRST + b"\xff\x00\xff" + FINAL,
        SAID.encode(),
        FINAL.replace(b"dH", "²".encode()),
    ],
)
def scram(data: bytes) -> None:
    """Messages of an exchange are as RFC 5802 has them, or NotAuthenticated; on both sides."""
    first, final, *_ = [*pieces(data), FINAL]
    with contextlib.suppress(NotAuthenticated):
        read = read_client_first(first)
        said = server_first(read, KEYS, "server")
        with contextlib.suppress(NotAuthenticated):
            server_final(read, said, KEYS, final)
    for each in (final, data):
        with contextlib.suppress(NotAuthenticated):
            server_final(read_client_first(FIRST), SAID, KEYS, each)
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", "nonce")
    with contextlib.suppress(NotAuthenticated):
        client.check(data)
    if b"i=" not in data:  # so many iterations as the broker asks for take their time
        with contextlib.suppress(NotAuthenticated):
            client.final(b"r=nonceX,i=4096," + data)


@target(
    "security.header",
    seeds=[
        b"Basic " + base64.b64encode(b"ann:secret"),
        b"Bearer abc",
        b"Basic \xc2\xb2",
    ],
)
def header(data: bytes) -> None:
    """The text `authorization` is read, or NotAuthenticated."""
    for text in (_text(data), data.decode("latin-1")):
        with contextlib.suppress(NotAuthenticated):
            read_authorization(text)


KEY = b"0123456789abcdef0123456789abcdef"


def _authenticator() -> TokenAuthenticator:
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(KEY)
    made = JwtSettings(
        kind="jwt",
        secret_file=file.name,
        algorithms=["HS256"],
        issuer="https://i",
        audience="lakemq",
    )
    authenticator = TokenAuthenticator(made, lambda: 0)
    Path(file.name).unlink()
    return authenticator


TOKENS = _authenticator()
CLAIMS = {
    "sub": "ann",
    "exp": 4_000_000_000,
    "iss": "https://i",
    "aud": "lakemq",
    "roles": ["r"],
    "lakemq_rules": [{"operations": ["read"], "resource": "topic:a"}],
}
TOKEN = jwt.encode(CLAIMS, KEY, "HS256").encode()
BODIES = json.dumps({"alg": "HS256", "typ": "JWT"}).encode(), json.dumps(CLAIMS).encode()


@target("security.jwt", seeds=[
    TOKEN, b"\xff\x00\xff".join(BODIES), b'{"alg": ["HS256"]}\xff\x00\xff{}',
    BODIES[0] + b"\xff\x00\xff" + b"[" * 5000, b'{"alg": "HS256", "crit": 5}\xff\x00\xff{}',
], weight=2)  # fmt: skip
def tokens(data: bytes) -> None:
    """A token is somebody's, or not for us, or NotAuthenticated; whatever its parts say, and also
    when the signature is right."""
    head, body, *_ = [*pieces(data), BODIES[1]]
    parts = b".".join(map(_coded, (head, body)))
    built = parts + b"." + _coded(hmac.digest(KEY, parts, "sha256"))
    right = b".".join(map(_coded, (BODIES[0], head)))
    right += b"." + _coded(hmac.digest(KEY, right, "sha256"))
    for each in (data, built, right):
        credentials = Credentials("mqtt", "c", "10.0.0.1", token=_text(each))
        token_of(Credentials("mqtt", "c", "10.0.0.1", password=each))
        with contextlib.suppress(NotAuthenticated):
            _now(TOKENS.authenticate(credentials))


def _coded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


def _now(awaitable: object) -> None:
    """Run what awaits nothing."""
    try:
        awaitable.send(None)  # type: ignore[attr-defined]
    except StopIteration:
        return
    raise AssertionError("it waits")


class Book(dict[str, UserRecord]):
    def find(self, name: str) -> UserRecord | None:
        return self.get(name)

    def any_known(self) -> bool:
        return False


SESSIONS = SessionTokens(KEY, [Book()], 1000, lambda: 0)


@target(
    "security.session_tokens",
    seeds=[
        SESSIONS.issue(Principal("ann", roles=("r",)))[0].encode(),
        PREFIX.encode() + b"e30=.x",
        PREFIX.encode() + b"x.\xff",
    ],
)
def session_tokens(data: bytes) -> None:
    """A node's own token is known again, or NotAuthenticated."""
    for text in (_text(data), PREFIX + _text(data)):
        with contextlib.suppress(NotAuthenticated):
            _now(SESSIONS.authenticate(Credentials("native", "", "10.0.0.1", token=text)))


USERS = user_line(UserRecord("ann", "$argon2id$v=19$m=8,t=1,p=1$c2FsdA$aGFzaA", (KEYS,), ("r",)))
RULES = b"""[[rules]]
who = ["user:ann"]
operations = ["read"]
resource = "topic:a*"
"""


@target(
    "security.files",
    seeds=[
        f"# users\n{USERS}\nbob roles=a,b\n".encode(),
        RULES,
        b"CN=device\\,1+OU=x,O=Acme",
        "ann SCRAM-SHA-256$²:a$b:c".encode(),
        USERS.replace("4096", "9" * 5000).encode(),
    ],
)
def files(data: bytes) -> None:
    """Password files and rules files are read, or the error names the line."""
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(InvalidRequest):
        users = read_users(text)
        assert read_users("\n".join(map(user_line, users.values()))) == users
    with contextlib.suppress(ConfigError, UnicodeDecodeError):
        RuleSet(rules_reader("rules.toml")(data))
    subject_parts(text)


NAMES = ["/".join(each) for size in (1, 2, 3) for each in itertools.product("ab", repeat=size)]
CONTEXT = AccessContext(client_id="a", qos=1, retain=False)


@target(
    "security.filters",
    seeds=[
        b"a/+/#\xff\x00\xff+/b",
        b"#\xff\x00\xffa",
        b"+/#\xff\x00\xff+",
        b"a/#\xff\x00\xffa",
    ],
)
def filters(data: bytes) -> None:
    """What covers and overlaps says of two filters is true of the names that they match."""
    one, other, *_ = [*pieces(data), b"#"]
    left, right = one.decode("latin-1"), other.decode("latin-1")
    if not (is_filter(left) and is_filter(right)):
        return
    mine, its = levels_of(left), levels_of(right)
    names = [
        (covers(mine, (*each.split("/"),)), covers(its, (*each.split("/"),))) for each in NAMES
    ]
    if covers(mine, its):
        assert all(wide for wide, narrow in names if narrow)
    if not overlaps(mine, its):
        assert not any(first and second for first, second in names)
    assert overlaps(mine, its) == overlaps(its, mine)


@target(
    "security.rules",
    seeds=[
        b"\x0b\x01user:ann",
        b"\x0brole:r\xff\x00\xffall\xff\x00\xfftopic\xff\x00\xffa*",
    ],
)
def rules(data: bytes) -> None:
    """A rule is refused in words or judges every question; and is the same after it was kept."""
    parts = [each.decode("latin-1") for each in pieces(data)]
    who, operation, kind, name, *_ = [*parts, "any", "all", "topic", "a"]
    rule = Rule((who,), (operation,), kind, name, bool(len(data) & 1), (), None, "")
    if check_rule(rule):
        return
    book = RuleSet([rule], unmatched_allows=False)
    asked = Principal(who.partition(":")[2] or "x", roles=("r",)), Operation.READ
    for resource in (Resource("topic", name), Resource("topic_name", "a/b")):
        answer = book.allows(*asked, resource, CONTEXT)
        again = RuleSet([rule_of(each) for each in acl_rules_of(rule)], unmatched_allows=False)
        assert again.allows(*asked, resource, CONTEXT) == answer
    limits_of({name: Quota(name, *(next(Values(data).values(), None),) * 2)})
