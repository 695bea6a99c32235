"""TLS of the native listener: certificates from files, and who a client's certificate names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import grpc

from lakemq.broker_core.api.tls_files.server_context import server_context
from lakemq.broker_core.api.tls_files.watched_files import WatchedFiles

Certificates = WatchedFiles[grpc.ServerCertificateConfiguration]


def certificates_of(tls_cert: str, tls_key: str, tls_ca: str) -> Certificates:
    """`tls_ca` not empty: clients must show a certificate that it signed. Raises ConfigError,
    naming the file."""

    def load() -> grpc.ServerCertificateConfiguration:
        # OpenSSL reads the files first: gRPC does not say what is wrong with one
        server_context(
            "plugins.native", tls_cert, tls_key, tls_ca, "required" if tls_ca else "none"
        )
        chain = (Path(tls_key).read_bytes(), Path(tls_cert).read_bytes())
        roots = Path(tls_ca).read_bytes() if tls_ca else None
        return grpc.ssl_server_certificate_configuration([chain], roots)

    return WatchedFiles([each for each in (tls_cert, tls_key, tls_ca) if each], load)


class ServerTls:
    """What a listener shows to new connections: changed files, or other ones."""

    def __init__(self, files: Certificates, *, mutual: bool) -> None:
        """`mutual`: clients must show a certificate."""
        self.files = files
        """May be others at any time."""
        self._used = files.value
        self.credentials = grpc.dynamic_ssl_server_credentials(
            files.value,
            self._renewed,  # type: ignore[arg-type]  # the stub forgets None, which gRPC allows
            require_client_authentication=mutual,
        )

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """gRPC asks at each handshake, in any thread; None: nothing changed."""
        found = self.files.current()
        if found is self._used:
            return None
        self._used = found
        return found


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
