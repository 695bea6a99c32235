"""Asks the admin API of a real node."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.support.node.node import NodeProcess


class Answered(NamedTuple):
    status: int
    body: str
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> list[dict[str, Any]]:
        """Rows of a list."""
        found: list[dict[str, Any]] = self.json["data"]
        return found


def ask(
    node: NodeProcess,
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> Answered:
    """`path`: behind `/api/v1/`, or with a `/` before it from the root."""
    root = path if path.startswith("/") else f"/api/v1/{path}"
    data = None if method in ("GET", "HEAD") else json.dumps(body or {}).encode()
    request = urllib.request.Request(
        f"http://{node.addresses['admin']}{root}", data, method=method,
        headers={"Content-Type": "application/json", **(headers or {})},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Answered(answer.status, answer.read().decode(), dict(answer.headers))
    except urllib.error.HTTPError as error:
        with error:
            return Answered(error.code, error.read().decode(), dict(error.headers))
