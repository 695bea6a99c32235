"""How commands ask the HTTP admin of a node."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from typing import Any, Final

from lakemq.broker_core.api.command_line import AdminOptions, ExitCode, fail, secret
from lakemq.broker_core.api.command_line.output import exit_code_of

_TIMEOUT_S: Final = 10
_ANSWER_MAX_BYTES: Final = 64 << 20
_BY_STATUS: Final = {
    401: ExitCode.DENIED,
    403: ExitCode.DENIED,
    404: ExitCode.UNKNOWN,
    503: ExitCode.UNAVAILABLE,
}
"""For answers that are no problem details, as a proxy gives them."""


def ask_admin(
    node: AdminOptions, path: str, method: str = "GET", body: dict[str, Any] | None = None
) -> bytes:
    """Body of the answer. `body`: travels as JSON. An error ends the command with one line."""
    try:
        return ask(node, path, method, body)
    except Refused as refusal:
        fail(refusal, refusal.exit_code, code=refusal.code)


class Refused(Exception):
    """The node's answer is an error, or it gave none. The text says which."""

    def __init__(self, message: str, exit_code: ExitCode | None, code: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        """What a command ends with; None: as `fail` says."""
        self.code = code
        """The problem's stable name; empty: it was no problem of the API."""


def ask(
    node: AdminOptions,
    path: str,
    method: str = "GET",
    body: dict[str, Any] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> bytes:
    """As `ask_admin`. Raises Refused."""
    base = node.admin if node.admin.startswith(("http://", "https://")) else f"http://{node.admin}"
    request = urllib.request.Request(
        f"{base}/{path}",
        data=None if method == "GET" else json.dumps(body or {}).encode(),
        method=method,
        headers={"Content-Type": "application/json", **_authorization(node)},
    )
    try:
        tls = ssl.create_default_context(cafile=node.tls_ca or None)
        if node.tls_cert:
            tls.load_cert_chain(node.tls_cert, node.tls_key or None)
        with urllib.request.urlopen(request, timeout=timeout_s, context=tls) as answer:
            return bytes(answer.read(_ANSWER_MAX_BYTES))
    except urllib.error.HTTPError as error:
        raise _refused(error) from None
    except (OSError, ValueError) as error:
        raise Refused(f"{node.admin}: {error}", ExitCode.UNAVAILABLE) from None


def _authorization(node: AdminOptions) -> dict[str, str]:
    if token := secret("TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    if node.username:
        login = f"{node.username}:{secret('PASSWORD') or ''}"
        return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    return {}


def _refused(error: urllib.error.HTTPError) -> Refused:
    try:
        problem = json.load(error)
        message, code = str(problem["detail"]), str(problem["code"])
        kind = exit_code_of(code, retriable=bool(problem.get("retriable")))
    except (ValueError, KeyError, TypeError):
        return Refused(f"{error.code} {error.reason}", _BY_STATUS.get(error.code))
    return Refused(message, kind, code)
