"""Authentication by a verified client certificate."""

from __future__ import annotations

import re
from typing import Final

from lakemq.broker_core.api.errors import NotAuthenticated
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.types import Principal
from lakemq.broker_core.security.settings import CertificateSettings

_PART: Final = re.compile(r"\{([A-Za-z0-9.]+)\}")


class CertificateAuthenticator:
    """Derives the user, and roles, from a certificate's subject and alternative names by
    templates."""

    needs_credentials = True

    def __init__(self, settings: CertificateSettings) -> None:
        self._settings = settings

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """The user that the certificate names; None: there is no certificate. Raises
        NotAuthenticated when it lacks fields of the template."""
        subject = credentials.certificate_subject
        if subject is None:
            return None
        parts = _parts(subject, credentials.certificate_names)
        name = _filled(self._settings.user, parts)
        if not name:
            raise NotAuthenticated(
                f"certificate {subject} lacks fields required by template {self._settings.user!r}"
            )
        roles = {_filled(each, parts) for each in self._settings.roles} - {None}
        return Principal(
            name,
            attributes={"certificate_subject": subject},
            roles=tuple(sorted(role for role in roles if role)),
        )

    def handles(self, credentials: Credentials) -> bool:
        """A certificate alone makes a user; without one others are asked."""
        return False


def _filled(template: str, parts: dict[str, str]) -> str | None:
    """The template filled in; None: the certificate lacks a field that it names."""
    if any(name not in parts for name in _PART.findall(template)):
        return None
    return _PART.sub(lambda match: parts[match.group(1)], template)


def _parts(subject: str, names: tuple[str, ...]) -> dict[str, str]:
    found = {"subject": subject}
    for kind, value in subject_parts(subject):
        found.setdefault(kind, value)
    for each in names:
        kind, _, value = each.partition(":")
        found.setdefault(kind, value)
    return found


def subject_parts(subject: str) -> list[tuple[str, str]]:
    """`CN=device-1,O=Acme` -> its parts; a backslash takes the next character as it is."""
    parts: list[tuple[str, str]] = []
    kind, text, escaped = "", "", False
    for character in subject + ",":
        if escaped:
            text, escaped = text + character, False
        elif character == "\\":
            escaped = True
        elif character == "=" and not kind:
            kind, text = text.strip(), ""
        elif character == ",":
            if kind:
                parts.append((kind, text))
            kind, text = "", ""
        else:
            text += character
    return parts
