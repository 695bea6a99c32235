"""The header `authorization` of HTTP and gRPC: RFC 7617 (Basic), RFC 6750 (Bearer)."""

from __future__ import annotations

import base64
from typing import NamedTuple

from lakemq.broker_core.api.errors import NotAuthenticated


class AuthorizationCredentials(NamedTuple):
    """What the header holds: user name and password, a bearer token, or nothing."""

    username: str | None = None
    password: bytes | None = None
    token: str | None = None


def read_authorization(text: str | None) -> AuthorizationCredentials:
    """Parse the header's text; `None`: it is absent. Raises NotAuthenticated when it is neither
    Basic nor Bearer."""
    if text is None:
        return AuthorizationCredentials()
    scheme, _, rest = text.partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer" and rest:
        return AuthorizationCredentials(token=rest)
    if scheme.lower() == "basic":
        try:
            username, found, password = base64.b64decode(rest, validate=True).partition(b":")
            if found:
                return AuthorizationCredentials(username.decode(), password)
        except ValueError:  # binascii.Error, and what is neither ASCII nor UTF-8
            pass
    raise NotAuthenticated("authorization is neither Bearer <token> nor Basic <base64>")
