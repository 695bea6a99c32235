"""Goal: a node takes tokens of an OpenID Connect issuer that it knows by URL alone, follows its
keys, and starts while it is away."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

import lakemq
from tests.support.cluster.load import until
from tests.support.node.node import PORTS_FREE, NodeProcess


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    folder = tmp_path / "site"
    (folder / ".well-known").mkdir(parents=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_issuer_by_its_url(site: tuple[Path, str], tmp_path: Path) -> None:
    folder, url = site
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("old", "new")}

    def publish(*names: str) -> None:
        kind = jwt.algorithms.ECAlgorithm
        made = [{**kind.to_jwk(keys[n].public_key(), as_dict=True), "kid": n} for n in names]
        (folder / "keys").write_text(json.dumps({"keys": made}))

    def refusal(name: str) -> str:
        """Of a token that this key signed; empty: it is taken."""
        claims = {"sub": "ann", "exp": 4_000_000_000, "iss": url}
        token = jwt.encode(claims, keys[name], "ES256", {"kid": name})
        try:
            with lakemq.connect(node.native, token=token, timeout_s=5) as client:
                client.topics()
        except lakemq.LakeMQError as error:
            return str(error)
        return ""

    config = f"""
[security]
anonymous = "never"

[[security.authenticators]]
kind = "jwt"
issuer = "{url}"
discovery = true
refresh_ms = 1000
"""
    with NodeProcess(tmp_path / "node", PORTS_FREE + config) as node:
        assert "not here yet" in refusal("old")
        assert "no token is taken until then" in node.log_file.read_text()
        publish("old")
        document = {"issuer": url, "jwks_uri": f"{url}/keys"}
        (folder / ".well-known" / "openid-configuration").write_text(json.dumps(document))
        until(lambda: not refusal("old"))
        assert "no known key" in refusal("new")
        publish("new")
        until(lambda: not refusal("new"))
        assert "no known key" in refusal("old")
