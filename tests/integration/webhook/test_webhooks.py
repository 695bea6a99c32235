"""Goal: records reach an HTTP service at least once and in order, whoever dies in between, and only
those that are wanted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import lakemq
from tests.support.cluster.load import until
from tests.support.node.node import NodeProcess, ports_kept
from tests.support.node.ports import free_port

RECEIVER = """
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(sys.argv[2], "ab") as file:
            file.write(body + b"\\n")
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
"""
"""Writes what it gets to a file before it answers."""
SECRET = base64.b64encode(b"a secret of the receiver").decode()


class Service:
    """An HTTP service that answers as it is told; what it took and refused is kept by path."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: dict[str, list[int]] = {}
        """Path -> what the next requests are answered with; then 200."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append((self.path, dict(self.headers), body))
                left = outer.answers.get(self.path)
                self.send_response(left.pop(0) if left else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def values(self, path: str) -> list[str]:
        """Of all records that came there, repeated ones too."""
        bodies = [json.loads(body) for at, _, body in self.got if at == path]
        return [row["value"] for body in bodies for row in body["records"]]


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.server.shutdown()
    made.server.server_close()


def hook(name: str, url: str, **more: Any) -> str:
    settings = {"name": name, "topic": name, "url": url, "start": "earliest",
                "retry_min_ms": 50, "retry_max_ms": 200, "commit_ms": 50, **more}  # fmt: skip
    return "\n".join(
        ["[[plugins.webhook.hooks]]", *(f"{k} = {toml(v)}" for k, v in settings.items()), ""]
    )


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(each)}" for name, each in value.items()) + "}"
    return json.dumps(value)


def lag(client: lakemq.SyncClient, group: str) -> int:
    return sum(each.lag for each in client.describe_group(group).offsets)


def offsets(file: Path) -> dict[int, list[int]]:
    """Partition -> offsets as they came."""
    found: dict[int, list[int]] = {0: [], 1: []}
    for line in file.read_text().splitlines() if file.exists() else ():
        body = json.loads(line)
        found[body["partition"]] += [row["offset"] for row in body["records"]]
    return found


def test_nothing_is_lost_when_receiver_and_node_are_killed(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "received"
    program = [sys.executable, "-c", RECEIVER, str(port), str(file)]
    config = ports_kept("native") + hook("rooms", f"http://127.0.0.1:{port}/", records_max=7)
    node = NodeProcess(tmp_path / "node", config).start()
    receiver = subprocess.Popen(program)
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        with lakemq.connect(node.native, timeout_s=30) as client:
            for partition in range(2):
                values = [lakemq.NewRecord(b"%d" % n) for n in range(sent, sent + count)]
                client.send_batch("rooms", values, partition=partition)
        sent += count

    def there(count: int) -> bool:
        return all(len(set(each)) >= count for each in offsets(file).values())

    try:
        with lakemq.connect(node.native, timeout_s=30) as client:
            client.create_topic("rooms", partitions=2)
        send(300)
        until(lambda: any(offsets(file).values()))
        receiver.send_signal(signal.SIGKILL)  # in the midst of them
        receiver.wait()
        send(300)
        node.kill()
        receiver = subprocess.Popen(program)
        node.start()
        send(100)
        until(lambda: there(700))
        for each in offsets(file).values():
            assert list(dict.fromkeys(each)) == list(range(700)), "in order, and none is missing"
        with lakemq.connect(node.native, timeout_s=30) as client:
            until(lambda: lag(client, "webhook-rooms") == 0)
    finally:
        receiver.kill()
        receiver.wait()
        node.kill()


def test_what_is_sent_and_how(tmp_path: Path, service: Service) -> None:
    url = f"http://127.0.0.1:{service.server.server_port}"
    config = ports_kept("native") + "\n".join([
        hook("signed", f"{url}/signed", secret_env="HOOK_SECRET",
             headers={"Authorization": "Bearer ${HOOK_TOKEN}"}),
        hook("picked", f"{url}/picked",
             wanted={"key_filter": "alarms/+/high", "headers": {"unit": "c"}}),
        hook("latest", f"{url}/latest", start="latest"),
        hook("strict", f"{url}/strict", records_max=1, refused="skip"),
        hook("silent", f"{url}/silent"),
    ])  # fmt: skip
    names = ("signed", "picked", "latest", "strict")
    service.answers["/strict"] = [503, 429, 302, 400]
    environment = {"HOOK_SECRET": f"whsec_{SECRET}", "HOOK_TOKEN": "t0ken"}
    with NodeProcess(tmp_path / "node", config, environment) as node:
        with lakemq.connect(node.native, timeout_s=30) as client:
            for name in names:
                client.create_topic(name, partitions=1)
                client.send(name, b"old", key=b"alarms/a/high", headers=(("unit", b"c"),))
            client.send("signed", b"\xff\x00", headers=(("n", None), ("b", b"\xfe")))
            client.send("picked", b"no", key=b"alarms/a/low", headers=(("unit", b"c"),))
            client.send("picked", b"no", key=b"alarms/a/high", headers=(("unit", b"f"),))
            client.send("picked", b"no")
            client.send("picked", b"new", key=b"alarms/b/high", headers=(("unit", b"c"),))
            client.send("strict", b"kept")
            until(lambda: "webhook-latest" in [each.name for each in client.groups()])
            client.send("latest", b"new")
            until(
                lambda: (
                    "\ufffd" not in service.values("/signed") and len(service.values("/signed")) > 1
                )
            )
            until(lambda: "new" in service.values("/picked") and "new" in service.values("/latest"))
            until(lambda: "kept" in service.values("/strict"))
            assert service.values("/picked") == ["old", "new"]
            assert service.values("/latest") == ["new"]
            # 503, 429 and a redirect are tried again; 400 is left out, as it is told to.
            assert service.values("/strict") == ["old"] * 4 + ["kept"]
            check_request(service)
            # An operator sends it back.
            place = lakemq.TopicPartition("picked", 0)
            client.reset_offsets("webhook-picked", {place: 0})
            until(lambda: service.values("/picked") == ["old", "new", "old", "new"])
            # Deleted before it was sent: counted, and what is there is sent.
            client.admin.delete_records("latest", {0: 1})
            client.reset_offsets("webhook-latest", {lakemq.TopicPartition("latest", 0): 0})
            until(lambda: service.values("/latest") == ["new", "new"])
            until(lambda: counted(node, "webhook_lost", "latest") == 1)
            until(lambda: counted(node, "webhook_records", "picked") == 4)
            until(lambda: counted(node, "webhook_failures", "strict") == 4)
            until(lambda: counted(node, "webhook_skipped", "strict") == 1)
        assert service.values("/silent") == []
        log = node.log_file.read_text()
        assert "topic 'silent'" not in log and "t0ken" not in log and SECRET not in log


def counted(node: NodeProcess, name: str, webhook: str) -> float:
    with urllib.request.urlopen(f"http://{node.addresses['admin']}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    ours = [line for line in lines if line.startswith(f"lakemq_{name}_total{{")]
    return sum(float(each.rpartition(" ")[2]) for each in ours if f'webhook="{webhook}"' in each)


def check_request(service: Service) -> None:
    [(_, headers, body), *_] = [each for each in service.got if each[0] == "/signed"]
    assert headers["Authorization"] == "Bearer t0ken"
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    mac = hmac.new(b"a secret of the receiver", signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(mac).decode()
    rows = [
        row
        for path, _, text in service.got
        if path == "/signed"
        for row in json.loads(text)["records"]
    ]
    assert rows[0]["key"] == "alarms/a/high" and rows[0]["offset"] == 0
    assert (rows[1]["value"], rows[1]["value_encoding"]) == ("/wA=", "base64")
    assert rows[1]["headers"] == [
        {"name": "n", "value": None, "encoding": "text"},
        {"name": "b", "value": "/g==", "encoding": "base64"},
    ]
