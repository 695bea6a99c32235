"""What a connection that did not come about was refused for, where that is a mistake about TLS: it
does not get better by trying again.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from typing import Final

from lakemq.plugins.native.sdk.net.addresses import Bootstrap

_SAID: Final = (
    ("WRONG_VERSION_NUMBER", "it does not speak TLS: leave tls= out"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not signed by an authority of tls.ca"),
    ("Hostname Verification Check failed", "its certificate is for another name: tls.server_name"),
    ("is not in peer certificate", "its certificate is for another name: tls.server_name"),
    ("CERTIFICATE_REQUIRED", "it asks for a certificate: tls.certificate and tls.key"),
    ("UNKNOWN_CA", "it does not know who signed tls.certificate"),
    ("SSL_ERROR_SSL", "the TLS handshake failed"),
)
"""What gRPC's text holds -> what that means."""
_TLS_RECORDS: Final = (b"\x15", b"\x16")
"""First bytes of an answer in TLS: an alert, a handshake (RFC 8446, section 5.1)."""
_CUT_OFF: Final = ("Socket closed", "Connection reset")
_PROBE_S: Final = 0.5
_PROBE_EVERY_S: Final = 5.0


def tls_mistake(details: str, bootstrap: str) -> str:
    """In words; empty: it is something else. `details`: gRPC's own of a call without an answer.

    A broker that expects TLS just closes a plain connection, as a broken one does; so it is asked,
    for 0.5 s every 5 s at most, whether it would have answered with TLS.
    """
    for said, meaning in _SAID:
        if said in details:
            return meaning
    if not isinstance(bootstrap, Bootstrap) or bootstrap.secure:
        return ""
    now_s = time.monotonic()
    if any(said in details for said in _CUT_OFF) and now_s >= bootstrap.probe_at_s:
        bootstrap.probe_at_s = now_s + _PROBE_EVERY_S
        if any(_speaks_tls(address) for address in bootstrap.split(",")):
            bootstrap.probe_at_s = 0.0
            return "it speaks TLS: give tls="
    return ""


def _speaks_tls(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return False
    # Its first bytes tell, so no certificate is looked at, and no handshake ends.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    hello = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S) as plain:
            plain.sendall(hello.read())
            return plain.recv(1) in _TLS_RECORDS
    except (OSError, ValueError):
        return False
