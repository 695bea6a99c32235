"""A throw-away certificate authority for tests, made with the `openssl` command."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    """Signs certificates; everything lies in one folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.certificate = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", f"/CN={name}", "-keyout", str(self._key),
            "-out", str(self.certificate),
            "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def sign(self, subject: str, file: str) -> tuple[Path, Path]:
        """(certificate, key) for a subject like `/CN=device-1/O=Acme`; for 127.0.0.1 too."""
        certificate, key = self.folder / f"{file}.pem", self.folder / f"{file}.key"
        request = self.folder / f"{file}.csr"
        extensions = self.folder / f"{file}.ext"
        extensions.write_text(
            "subjectAltName=IP:127.0.0.1,DNS:localhost\n"
            "authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
        )
        _openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", subject, "-keyout", str(key), "-out", str(request),
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.certificate),
            "-CAkey", str(self._key), "-CAcreateserial", "-days", "2",
            "-extfile", str(extensions), "-out", str(certificate),
        )  # fmt: skip
        return certificate, key

    def client_context(self, pair: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Trusts this authority; shows `pair` if it is given."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if pair is not None:
            context.load_cert_chain(*pair)
        return context
