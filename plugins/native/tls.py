"""TLS of the native listener: certificates from files, and who a client's certificate names."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path

import grpc

from broker_core.api.errors import StartupError


def server_credentials(certificate: str, key: str, client_ca: str) -> grpc.ServerCredentials:
    """`client_ca` not empty: clients must show a certificate that it signed. Raises StartupError,
    naming the file."""
    _check(certificate, key, client_ca)
    chain = (Path(key).read_bytes(), Path(certificate).read_bytes())
    roots = Path(client_ca).read_bytes() if client_ca else None
    return grpc.ssl_server_credentials([chain], roots, require_client_auth=bool(client_ca))


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
