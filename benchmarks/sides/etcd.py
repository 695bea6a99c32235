"""Three etcd members with mutual TLS, asked over gRPC; it fsyncs before every ack, as it comes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from benchmarks.sides.mqtt_peers import found
from tests.support.meta.group import Certificates, channel_credentials, free_ports

VALUE = bytes(100)
Call = Callable[[int], Awaitable[Any]]


def _field(number: int, data: bytes) -> bytes:
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


class EtcdGroup:
    """Three etcd members. `put` and `get` go to the leader."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._certificates = Certificates(folder / "etcd-tls")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._client = self._certificates.sign("etcd-client")

    def start(self) -> None:
        """Raises Missing."""
        etcd = found("etcd", "apt-get install etcd-server etcd-client")
        found("etcdctl", "apt-get install etcd-client")
        names = ["e1", "e2", "e3"]
        api, peer = free_ports(3), free_ports(3)
        self._endpoints = [f"https://127.0.0.1:{port}" for port in api]
        cluster = ",".join(
            f"{name}=https://127.0.0.1:{port}" for name, port in zip(names, peer, strict=True)
        )
        for name, api_port, peer_port in zip(names, api, peer, strict=True):
            tls = self._certificates.sign(name)
            arguments = {
                "name": name,
                "data-dir": str(self._folder / name),
                "listen-client-urls": f"https://127.0.0.1:{api_port}",
                "advertise-client-urls": f"https://127.0.0.1:{api_port}",
                "listen-peer-urls": f"https://127.0.0.1:{peer_port}",
                "initial-advertise-peer-urls": f"https://127.0.0.1:{peer_port}",
                "initial-cluster": cluster,
            }
            for prefix in ("", "peer-"):
                arguments[prefix + "cert-file"] = tls["tls_cert"]
                arguments[prefix + "key-file"] = tls["tls_key"]
                arguments[prefix + "trusted-ca-file"] = tls["tls_ca"]
            words = [f"--{option}={value}" for option, value in arguments.items()]
            self._processes.append(
                subprocess.Popen(
                    [etcd, *words, "--client-cert-auth", "--peer-client-cert-auth"],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )

    def _leader(self) -> str:
        """`host:port`; asks until there is one."""
        tls = self._client
        command = [
            "etcdctl",
            "endpoint",
            "status",
            "--write-out=json",
            f"--endpoints={','.join(self._endpoints)}",
            f"--cert={tls['tls_cert']}",
            f"--key={tls['tls_key']}",
            f"--cacert={tls['tls_ca']}",
        ]
        environment = {**os.environ, "ETCDCTL_API": "3"}
        for _ in range(100):
            run = subprocess.run(command, capture_output=True, env=environment)
            for told in json.loads(run.stdout or b"[]"):
                status = told["Status"]
                if status.get("leader") == status["header"]["member_id"]:
                    return str(told["Endpoint"]).removeprefix("https://")
            time.sleep(0.2)
        raise RuntimeError("etcd has no leader")

    async def connect(self) -> tuple[Call, Call]:
        address = await asyncio.to_thread(self._leader)
        self._channel = grpc.aio.secure_channel(address, channel_credentials(self._client))
        put = self._channel.unary_unary("/etcdserverpb.KV/Put")
        get = self._channel.unary_unary("/etcdserverpb.KV/Range")

        async def put_one(number: int) -> None:
            await put(_field(1, b"load/%d" % number) + _field(2, VALUE), timeout=30)

        async def get_one(number: int) -> None:
            await get(_field(1, b"load/%d" % number), timeout=30)

        return put_one, get_one

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    async def stop(self) -> None:
        await self._channel.close()
        for process in self._processes:
            process.kill()
            process.wait()
