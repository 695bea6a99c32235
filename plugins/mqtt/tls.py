"""TLS of a listener: its context from files, and their renewal without a restart."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Sequence
from typing import Any, Literal

from broker_core.api.errors import ConfigError

log = logging.getLogger(__name__)

ClientCertificate = Literal["none", "optional", "required"]
_MODES = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class Certificates:
    """The files behind one listener's TLS. `renew` takes changed ones into use."""

    def __init__(
        self,
        certificate: str,
        key: str,
        client_ca: str = "",
        client_certificate: ClientCertificate = "none",
    ) -> None:
        """Raises ConfigError, naming the file, when one is missing or they do not fit."""
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._mode = client_certificate
        self.context = self._load()
        """For connections to come; another one after a renewal."""
        self._stamps = self._stamp()

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"TLS: {self._certificate}, {self._key}: {error}") from error
        if self._mode != "none":
            try:
                context.load_verify_locations(self._client_ca)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"TLS: {self._client_ca}: {error}") from error
        context.verify_mode = _MODES[self._mode]
        return context

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        """Inode and change time of each file: what a renewal changes."""
        found = []
        paths = [self._certificate, self._key]
        if self._mode != "none":
            paths.append(self._client_ca)
        for path in paths:
            status = os.stat(path)
            found.append((status.st_ino, status.st_mtime_ns))
        return tuple(found)

    def renew(self) -> bool:
        """Take changed files (certificate, key, authorities of client certificates) into use for
        connections to come; True when that was done. Files that are missing or do not fit yet are
        left for the next time."""
        try:
            stamps = self._stamp()
            if stamps == self._stamps:
                return False
            self.context = self._load()  # anew: an authority can't be taken out of a context
        except (ConfigError, OSError, ssl.SSLError) as error:
            log.warning("certificate not renewed yet: %s", error)
            return False
        self._stamps = stamps
        log.info("certificate renewed from %s", self._certificate)
        return True


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
