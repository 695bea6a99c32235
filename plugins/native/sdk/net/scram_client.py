"""SCRAM, the client's side. Source: RFC 5802, RFC 7677."""

from __future__ import annotations

import base64
import hashlib
import hmac
import unicodedata
from typing import Final

from lakemq.broker_core.api.errors import NotAuthenticated

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_COUNT_DIGITS_MAX: Final = 10
_ITERATIONS_MAX: Final = 1_000_000
"""More would let a server keep a client busy."""
_ITERATIONS_MIN: Final = 4_096
"""Less would let a false server guess the password from the proof."""


class ScramClient:
    """One exchange: `first`, then `final` with what the server answered, then `check`."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        self._digest = HASHES[mechanism]
        self._password = unicodedata.normalize("NFKC", password).encode()
        self._nonce = nonce
        # RFC 5802, section 5.1: `=` first, or the escapes would be escaped.
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}"
        self._proof_of_server = b""

    def first(self) -> bytes:
        """The client-first-message (RFC 5802, section 3)."""
        return f"n,,{self._bare}".encode()

    def final(self, said: bytes) -> bytes:
        """The client-final-message (RFC 5802, section 3), which proves the password. Raises
        NotAuthenticated when `said` does not answer `first`."""
        text = said.decode("utf-8", "replace")
        fields = dict(part.partition("=")[::2] for part in text.split(","))
        nonce = fields.get("r", "")
        count = fields.get("i", "")
        try:
            salt = base64.b64decode(fields.get("s", ""), validate=True)
        except ValueError:  # binascii.Error, and what is not ASCII
            salt = b""
        # The broker must extend our nonce (RFC 5802, section 5): else an old exchange could be
        # replayed to us.
        if not nonce.startswith(self._nonce) or nonce == self._nonce or not salt:
            raise NotAuthenticated("SCRAM: the broker's answer is none")
        is_number = count.isdecimal() and len(count) <= _COUNT_DIGITS_MAX
        if not is_number or not _ITERATIONS_MIN <= int(count) <= _ITERATIONS_MAX:
            raise NotAuthenticated(f"SCRAM: the broker asks for {count} iterations")
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, salt, int(count))
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        server_key = hmac.digest(salted, b"Server Key", self._digest)
        stored_key = hashlib.new(self._digest, client_key).digest()
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},{text},{without_proof}".encode()
        signature = hmac.digest(stored_key, message, self._digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        mine = hmac.digest(server_key, message, self._digest)
        self._proof_of_server = b"v=" + base64.b64encode(mine)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, said: bytes) -> None:
        """Whether the broker knows the user too. Raises NotAuthenticated."""
        # In constant time, so that the time tells nothing of the expected bytes.
        if not hmac.compare_digest(said, self._proof_of_server):
            raise NotAuthenticated("SCRAM: the broker could not prove that it knows the user")
