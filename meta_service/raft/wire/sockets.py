"""Sockets between members: TLS on both sides, options of TCP, and whose certificate it is."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from typing import Final

from lakemq.meta_service.api.errors import StartupFailed
from lakemq.meta_service.raft.wire.frames import Refusal

AGAIN: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)
"""Raised where a call would block; other OSErrors end a connection."""
_DEAD_S: Final = 2
"""A connection whose other end acknowledges nothing for that long is given up."""


@dataclass(frozen=True, slots=True)
class Pem:
    """Certificate chain, its key, and the authority that signed the members' certificates."""

    certificate: bytes
    key: bytes
    authority: bytes
    certificate_file: str
    """Where the chain was read from, for what takes files alone."""
    key_file: str


def tls_context(pem: Pem, *, is_server: bool) -> ssl.SSLContext:
    """Both sides show a certificate of the authority. Raises StartupFailed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # it names a member, wherever that runs: `check_name`
    context.verify_mode = ssl.CERT_REQUIRED
    # The authority may be one that a larger one signed, as for gRPC.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=pem.authority.decode("ascii"))
        # The password of an encrypted key is not asked for at a terminal.
        context.load_cert_chain(pem.certificate_file, pem.key_file, password=lambda: "")
    except (OSError, ValueError) as error:  # of ssl, too
        raise StartupFailed(f"meta.tls_cert, meta.tls_key, meta.tls_ca: {error}") from error
    return context


def check_name(connected: socket.socket, name: str) -> None:
    """The name that the other end gives is a claim; the certificate that TLS verified is the proof.

    Raises Refusal.
    """
    if isinstance(connected, ssl.SSLSocket):
        certificate = connected.getpeercert() or {}
        if ("DNS", name) not in certificate.get("subjectAltName", ()):
            raise Refusal(f"the certificate does not name {name!r}")


def listen(host: str, port: int) -> socket.socket:
    """Raises StartupFailed."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise StartupFailed(f"cannot listen on {address}: {error.strerror}") from error


def set_options(connected: socket.socket) -> None:
    """Messages leave at once; an end that is gone is noticed in `_DEAD_S` or a little more."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": _DEAD_S, "TCP_KEEPALIVE": _DEAD_S, "TCP_KEEPINTVL": 1}
    for name, value in {**options, "TCP_USER_TIMEOUT": _DEAD_S * 1000}.items():
        if hasattr(socket, name):  # not all of them on every system
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def refuses(address: str, wait_s: float) -> bool:
    """Whether the host answers, for there is no process that listens at `host:port`."""
    try:
        socket.create_connection(host_and_port(address), wait_s).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def host_and_port(address: str) -> tuple[str, int]:
    """Of `host:port`, with or without brackets around the host."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
