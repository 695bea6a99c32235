"""Stock pysyncobj and etcd beside the MetaService, three members each on this machine.

etcd: Debian's `etcd-server` and `etcd-client`, mutual TLS, its default fsync before every ack;
asked over gRPC from Python, as the MetaService is. pysyncobj as it comes: no TLS, a journal without
fsync, called inside the leader's process. Used by `benchmarks.meta_speed`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from tests.support.meta.group import Certificates, channel_credentials, free_ports

VALUE = bytes(100)
Call = Callable[[int], Awaitable[Any]]


def _field(number: int, data: bytes) -> bytes:
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def has_etcd() -> bool:
    return bool(shutil.which("etcd") and shutil.which("etcdctl"))


class EtcdGroup:
    """Three etcd members. `put` and `get` go to the leader."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._certificates = Certificates(folder / "etcd-tls")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._client = self._certificates.sign("etcd-client")

    def start(self) -> None:
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
                    ["etcd", *words, "--client-cert-auth", "--peer-client-cert-auth"],
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


# ------------------------------------------------------------ stock pysyncobj


def _serve_stock(own: str, others: list[str], folder: str) -> None:
    """A member. Reads (outstanding, writes) lines, prints writes/s."""
    from pysyncobj import SyncObj, SyncObjConf, replicated

    class Store(SyncObj):  # type: ignore[misc] # pysyncobj has no types
        def __init__(self) -> None:
            journal = f"{folder}/{own.rpartition(':')[2]}"
            conf = SyncObjConf(journalFile=journal, fullDumpFile=journal + ".dump")
            super().__init__(own, others, conf)
            self.rows: dict[bytes, bytes] = {}

        @replicated  # type: ignore[untyped-decorator] # pysyncobj has no types
        def put(self, key: bytes, value: bytes) -> None:
            self.rows[key] = value

    store = Store()
    while not store.isReady():
        time.sleep(0.05)
    print("leader" if store._isLeader() else "follower", flush=True)
    for line in sys.stdin:
        outstanding, writes = map(int, line.split())
        print(f"{asyncio.run(_load_stock(store, outstanding, writes)):.0f}", flush=True)
    os._exit(0)


async def _load_stock(store: Any, outstanding: int, writes: int) -> float:
    loop = asyncio.get_running_loop()
    numbers = iter(range(writes))

    async def writer() -> None:
        for number in numbers:
            done = loop.create_future()
            store.put(
                b"load/%d" % number,
                VALUE,
                callback=lambda _, error, done=done: loop.call_soon_threadsafe(
                    done.set_result, error
                ),
            )
            assert not await done

    begin = time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(outstanding)))
    return writes / (time.perf_counter() - begin)


class StockGroup:
    """Three members of stock pysyncobj."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.meta_peers", str(folder), own]
                + [other for other in addresses if other != own],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            for own in addresses
        ]
        self._leader = next(
            process for process in self._processes if self._read(process) == "leader"
        )

    @staticmethod
    def _read(process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().decode().strip()

    def rate(self, outstanding: int, writes: int) -> float:
        """Writes/s, called inside the leader."""
        assert self._leader.stdin is not None
        self._leader.stdin.write(b"%d %d\n" % (outstanding, writes))
        self._leader.stdin.flush()
        return float(self._read(self._leader))

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    _serve_stock(sys.argv[2], sys.argv[3:], sys.argv[1])
