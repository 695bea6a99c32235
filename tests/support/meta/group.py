"""A group of member processes with certificates, to be killed, stopped and cut off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc

from lakemq.meta_service.api.remote.client import RemoteClient
from tests.support.node.ports import free_ports

EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Certificates:
    """An authority and what it signed, in one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        _openssl(
            "req", "-x509", *EC, "-days", "2", "-subj", "/CN=ca",
            "-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.pem"),
            "-addext", "basicConstraints=critical,CA:TRUE",
        )  # fmt: skip

    def sign(self, name: str, host: str = "127.0.0.1") -> dict[str, str]:
        """Settings `tls_*` for a member of that name."""
        base = self.folder / name
        extensions = base.with_suffix(".ext")
        extensions.write_text(f"subjectAltName=DNS:{name},IP:{host},IP:127.0.0.1\n")
        _openssl(
            "req", *EC, "-subj", f"/CN={name}",
            "-keyout", f"{base}.key", "-out", f"{base}.csr",
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", f"{base}.csr", "-CA", str(self.folder / "ca.pem"),
            "-CAkey", str(self.folder / "ca.key"), "-CAcreateserial", "-days", "2",
            "-extfile", str(extensions), "-out", f"{base}.pem",
        )  # fmt: skip
        return {
            "tls_cert": f"{base}.pem",
            "tls_key": f"{base}.key",
            "tls_ca": str(self.folder / "ca.pem"),
        }


def channel_credentials(tls: dict[str, str]) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        Path(tls["tls_ca"]).read_bytes(),
        Path(tls["tls_key"]).read_bytes(),
        Path(tls["tls_cert"]).read_bytes(),
    )


class Group:
    """Processes n1, n2, ... Their data lies below `folder`."""

    def __init__(
        self,
        folder: Path,
        size: int = 3,
        *,
        tls: bool = True,
        timing: dict[str, Any] | None = None,
        hosts: list[str] | None = None,
        prefixes: list[list[str]] | None = None,
    ) -> None:
        """`prefixes`: what comes before each command line, like `ip netns exec ...`."""
        self.names = [f"n{number + 1}" for number in range(size)]
        self._folder = folder
        hosts = hosts or ["127.0.0.1"] * size
        ports = free_ports(2 * size)
        api, raft = ports[:size], ports[size:]
        self.api = {
            name: f"{host}:{port}" for name, host, port in zip(self.names, hosts, api, strict=True)
        }
        members = {
            name: f"{host}:{port}" for name, host, port in zip(self.names, hosts, raft, strict=True)
        }
        certificates = Certificates(folder / "tls") if tls else None
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._prefixes = dict(zip(self.names, prefixes or [[]] * size, strict=True))
        for name, host, api_port, raft_port in zip(self.names, hosts, api, raft, strict=True):
            settings = {"port": api_port, "raft_port": raft_port, "members": members}
            if certificates is not None:
                settings.update(certificates.sign(name, host), operators=["client"])
            config = {
                "node_id": name,
                "host": host,
                "data_dir": str(folder / name),
                "settings": settings,
                "timing": timing,
            }
            self.config_path(name).write_text(json.dumps(config))
        self._credentials = (
            channel_credentials(certificates.sign("client")) if certificates is not None else None
        )

    def config_path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def client(self, **settings: Any) -> RemoteClient:
        return RemoteClient(list(self.api.values()), credentials=self._credentials, **settings)

    def client_of(self, name: str, **settings: Any) -> RemoteClient:
        return RemoteClient([self.api[name]], credentials=self._credentials, **settings)

    # ------------------------------------------------------------ processes

    def command(self, name: str) -> list[str]:
        return [sys.executable, "-m", "tests.support.meta.process", str(self.config_path(name))]

    def start(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self._prefixes[name], *self.command(name)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def wait_ready(self, name: str) -> str:
        """The cluster id, when the member serves."""
        stdout = self.processes[name].stdout
        assert stdout is not None
        line = stdout.readline().decode().strip()
        assert line, (self._folder / f"{name}.log").read_text()[-2000:]
        return line

    def start_all(self) -> str:
        for name in self.names:
            self.start(name)
        ids = {self.wait_ready(name) for name in self.names}
        assert len(ids) == 1
        return ids.pop()

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.processes[name].pid, number)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.close()

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    async def leader(self, among: list[str] | None = None) -> str:
        """The member that most believe to lead; asks until there is one."""
        while True:
            for name in among or self.names:
                if name not in self.processes:
                    continue
                client = self.client_of(name, timeout_s=0.5, attempt_s=0.4)
                try:
                    status = await client.status()
                    if status.leader_id == status.member_id:
                        return name
                except Exception:  # it may be down, or slow: ask the next one
                    continue
                finally:
                    await client.close()
