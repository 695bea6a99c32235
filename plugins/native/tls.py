"""TLS of the native listener: certificates from files, and who a client's certificate names."""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import grpc

from broker_core.api.errors import StartupError

log = logging.getLogger(__name__)
LOOK_EVERY_S: Final = 1.0


def server_credentials(certificate: str, key: str, client_ca: str) -> grpc.ServerCredentials:
    """`client_ca` not empty: clients must show a certificate that it signed. Changed files are
    taken into use for new connections. Raises StartupError, naming the file."""
    files = CertificateFiles(certificate, key, client_ca)
    return grpc.dynamic_ssl_server_credentials(
        files.current,
        files.fetch,  # type: ignore[arg-type]  # the stub forgets None, which gRPC's page allows
        require_client_authentication=bool(client_ca),
    )


class CertificateFiles:
    """The listener's files, read again when they changed and fit together."""

    def __init__(self, certificate: str, key: str, client_ca: str) -> None:
        self._paths = (certificate, key, client_ca)
        _check(*self._paths)
        self._stamps = self._look()
        self.current = self._read()
        self._looked_s = time.monotonic()
        self._lock = threading.Lock()

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """What gRPC asks for at each handshake, in whatever thread; None: as it was."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._looked_s < LOOK_EVERY_S:
                return None
            self._looked_s = now_s
            try:
                stamps = self._look()
                if stamps == self._stamps:
                    return None
                _check(*self._paths)
                self.current = self._read()
            except (OSError, StartupError) as error:
                log.warning("certificate not renewed yet: %s", error)
                return None
            self._stamps = stamps
            log.info("certificate renewed from %s", self._paths[0])
            return self.current

    def _look(self) -> list[tuple[int, int]]:
        found = [os.stat(path) for path in self._paths if path]
        return [(each.st_ino, each.st_mtime_ns) for each in found]

    def _read(self) -> grpc.ServerCertificateConfiguration:
        certificate, key, client_ca = self._paths
        chain = (Path(key).read_bytes(), Path(certificate).read_bytes())
        roots = Path(client_ca).read_bytes() if client_ca else None
        return grpc.ssl_server_certificate_configuration([chain], roots)


def _check(certificate: str, key: str, client_ca: str) -> None:
    """gRPC says nothing of use about wrong files, so OpenSSL reads them first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for file in (certificate, key, client_ca):
        if file and not Path(file).is_file():
            raise StartupError(f"native: there is no file {file}")
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise StartupError(f"native: certificate {certificate} with key {key}: {error}") from None
    try:
        if client_ca:
            context.load_verify_locations(client_ca)
    except (ssl.SSLError, OSError) as error:
        raise StartupError(f"native: client_ca {client_ca}: {error}") from None


def subject_of(auth_context: Mapping[str, Iterable[bytes]]) -> str | None:
    """Subject of the verified client certificate, like `CN=spark,O=Acme`; None: there is none."""
    subject = next(iter(auth_context.get("x509_subject", ())), b"")
    name = next(iter(auth_context.get("x509_common_name", ())), b"")
    if not subject and not name:
        return None
    return subject.decode() or f"CN={name.decode()}"


def alternative_names(auth_context: Mapping[str, Iterable[bytes]]) -> tuple[str, ...]:
    """Other names of the verified client certificate, like `DNS:spark.acme.org`."""
    kinds = {"x509_dns": "DNS", "x509_uri": "URI", "x509_email": "email", "x509_ip": "IP"}
    return tuple(
        f"{kind}:{name.decode()}"
        for key, kind in kinds.items()
        for name in auth_context.get(key, ())
    )
