"""SCRAM-SHA-256 and SCRAM-SHA-512: the messages of the server, and the stored keys.

Source: RFC 5802 (the exchange), RFC 7677 (SHA-256), RFC 4013 (SASLprep of passwords is the client's
work; here a password is normalized by NFKC, as RFC 5802 section 2.2 allows for stored strings).
Channel binding is not offered: a client that insists on it is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Final

from lakemq.broker_core.api.errors import NotAuthenticated

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS: Final = 15_000
"""For keys made here: RFC 7677 asks for 4096 at least, more is harder to guess."""
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 1_000_000
MESSAGE_MAX_BYTES: Final = 4_096
_NAME: Final = re.compile(r"(?:[^=,\0]|=2C|=3D)+")
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,512}")


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """What a server keeps of a password: it proves a client's and is of no use to log in with."""

    mechanism: str
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def scram_keys(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramKeys:
    """Slow on purpose: `iterations` hashes. The same password and salt give the same keys."""
    digest = HASHES[mechanism]
    prepared = unicodedata.normalize("NFKC", password).encode()
    salted = hashlib.pbkdf2_hmac(digest, prepared, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    return ScramKeys(
        mechanism,
        salt,
        iterations,
        hashlib.new(digest, client_key).digest(),
        hmac.digest(salted, b"Server Key", digest),
    )


def made_up_keys(mechanism: str, name: str, secret: bytes) -> ScramKeys:
    """Keys for a user that does not exist: the same each time, so that a client can't tell."""
    digest = HASHES[mechanism]
    salt = hmac.digest(secret, b"salt " + name.encode(), digest)[:16]
    never = hmac.digest(secret, b"key " + name.encode(), digest)
    return ScramKeys(mechanism, salt, ITERATIONS, never, never)


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """What the client says first."""

    name: str
    nonce: str
    header: str
    """The GS2 header, which the client's last message repeats."""
    bare: str


def read_client_first(data: bytes) -> ClientFirst:
    """`n,,n=user,r=nonce`. Raises NotAuthenticated."""
    text = _text(data)
    flag, _, rest = text.partition(",")
    identity, _, bare = rest.partition(",")
    # RFC 5802, section 6: `p` demands channel binding; `y` and `n` do without.
    if flag.startswith("p="):
        raise NotAuthenticated("SCRAM: channel binding is not offered")
    if flag not in ("n", "y"):
        raise NotAuthenticated("SCRAM: the first message begins with neither n nor y")
    parts = bare.split(",")
    if identity or len(parts) < 2:
        raise NotAuthenticated("SCRAM: the first message is not n,,n=<user>,r=<nonce>")
    # RFC 5802, section 5.1: an unknown mandatory extension must end the exchange.
    if parts[0].startswith("m="):
        raise NotAuthenticated("SCRAM: mandatory extensions are not known here")
    name, nonce = parts[0][2:], parts[1][2:]
    if parts[0][:2] != "n=" or not _NAME.fullmatch(name):
        raise NotAuthenticated("SCRAM: the first message names no user")
    if parts[1][:2] != "r=" or not _NONCE.fullmatch(nonce):
        raise NotAuthenticated("SCRAM: the first message has no nonce")
    # In this order: `=3D2C` stands for `=2C`, not for a comma.
    plain = name.replace("=2C", ",").replace("=3D", "=")
    return ClientFirst(plain, nonce, f"{flag},{identity},", bare)


def server_first(first: ClientFirst, keys: ScramKeys, server_nonce: str) -> str:
    """What the server answers: both nonces, salt, iterations."""
    salt = base64.b64encode(keys.salt).decode()
    return f"r={first.nonce}{server_nonce},s={salt},i={keys.iterations}"


def server_final(first: ClientFirst, said: str, keys: ScramKeys, data: bytes) -> bytes | None:
    """Check the client's last message; the server's own proof, or None: the password is wrong.

    `said` is what `server_first` gave. Raises NotAuthenticated for a malformed message.
    """
    text = _text(data)
    without_proof, found, proof_text = text.rpartition(",p=")
    parts = without_proof.split(",")
    binding = base64.b64encode(first.header.encode()).decode()
    if not found or len(parts) < 2 or parts[0] != f"c={binding}":
        raise NotAuthenticated("SCRAM: the last message does not repeat how the exchange began")
    nonce = said.partition(",")[0]
    if not hmac.compare_digest(parts[1].encode(), nonce.encode()):
        raise NotAuthenticated("SCRAM: the last message has another nonce")
    try:
        proof = base64.b64decode(proof_text, validate=True)
    except ValueError:  # binascii.Error, and what is not ASCII
        raise NotAuthenticated("SCRAM: the proof is not base64") from None
    digest = HASHES[keys.mechanism]
    message = f"{first.bare},{said},{without_proof}".encode()
    signature = hmac.digest(keys.stored_key, message, digest)
    if len(proof) != len(signature):
        raise NotAuthenticated("SCRAM: the proof has the wrong length")
    # RFC 5802, section 3: ClientProof is ClientKey XOR ClientSignature, and H(ClientKey) is
    # StoredKey.
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    if not hmac.compare_digest(hashlib.new(digest, client_key).digest(), keys.stored_key):
        return None
    mine = hmac.digest(keys.server_key, message, digest)
    return b"v=" + base64.b64encode(mine)


def _text(data: bytes) -> str:
    if len(data) > MESSAGE_MAX_BYTES:
        raise NotAuthenticated(f"SCRAM: a message of {len(data)} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise NotAuthenticated("SCRAM: a message that is not UTF-8") from None
