"""A SCRAM-SHA-256 client (RFC 5802), written apart from the broker's side, and users for it."""

from __future__ import annotations

import base64
import hashlib
import hmac

from lakemq.broker_core.security.authn.scram import scram_keys
from lakemq.broker_core.security.authn.users import UserRecord

METHOD = "SCRAM-SHA-256"


class ScramUsers:
    """Ann and Bob, whose passwords are their names."""

    def __init__(self) -> None:
        self._keys = {
            name: scram_keys(METHOD, name, b"salt" + name.encode(), 4096) for name in ("ann", "bob")
        }

    def find(self, name: str) -> UserRecord | None:
        return UserRecord(name, scram=(self._keys[name],)) if name in self._keys else None

    def any_known(self) -> bool:
        return True


def first_of(user: str) -> bytes:
    return f"n,,n={user},r=clientnonce".encode()


def proof(user: str, password: str, said: bytes) -> bytes:
    """The client's last message (RFC 5802 section 3), written here anew."""
    parts = dict(part.split("=", 1) for part in said.decode().split(","))
    salt, rounds = base64.b64decode(parts["s"]), int(parts["i"])
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
    key = hmac.digest(salted, b"Client Key", "sha256")
    without = f"c=biws,r={parts['r']}"
    message = f"n={user},r=clientnonce,{said.decode()},{without}".encode()
    signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
    mixed = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{without},p={base64.b64encode(mixed).decode()}".encode()
