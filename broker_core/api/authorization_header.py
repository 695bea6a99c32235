"""The text `authorization` of HTTP and gRPC: RFC 7617 (Basic), RFC 6750 (Bearer). Pure."""

from __future__ import annotations

import base64
from typing import NamedTuple

from lakemq.broker_core.api.errors import NotAuthenticated


class Shown(NamedTuple):
    username: str | None = None
    password: bytes | None = None
    token: str | None = None


def read_authorization(text: str | None) -> Shown:
    """User and password, or token; nothing for None. Raises NotAuthenticated for what is
    neither."""
    if text is None:
        return Shown()
    scheme, _, rest = text.partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer" and rest:
        return Shown(token=rest)
    if scheme.lower() == "basic":
        try:
            username, found, password = base64.b64decode(rest, validate=True).partition(b":")
            if found:
                return Shown(username.decode(), password)
        except ValueError:  # binascii.Error, and what is neither ASCII nor UTF-8
            pass
    raise NotAuthenticated("authorization is neither Bearer <token> nor Basic <base64>")
