"""Who a verified client certificate names, as `ssl` tells it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def subject_of(certificate: dict[str, Any] | None) -> str | None:
    """A verified client certificate's subject, like `CN=device-1,O=Acme`; None: there is none."""
    if not certificate:
        return None
    names: Sequence[Sequence[tuple[str, str]]] = certificate.get("subject", ())
    short = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU"}
    parts = [
        f"{short.get(kind, kind)}={_escaped(value)}" for group in names for kind, value in group
    ]
    return ",".join(reversed(parts)) or None


def alternative_names(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """A verified client certificate's other names, like `DNS:device-1.acme.org`."""
    if not certificate:
        return ()
    names: Sequence[tuple[str, str]] = certificate.get("subjectAltName", ())
    return tuple(f"{kind}:{name}" for kind, name in names)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
