"""Member processes in network namespaces of their own, joined by a bridge: links can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess


def _ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ip", *arguments], check=check, capture_output=True)


def why_not() -> str:
    """Why namespaces cannot be used here; empty: they can."""
    if shutil.which("ip") is None:
        return "the command `ip` (Debian: iproute2) is not installed"
    probe = f"lq{os.getpid()}"
    made = _ip("netns", "add", probe, check=False)
    if made.returncode:
        return f"the kernel forbids network namespaces: {made.stderr.decode().strip()}"
    _ip("netns", "del", probe)
    return ""


class Network:
    """Namespaces and a bridge, named after this process so that nothing else is touched."""

    def __init__(self, size: int) -> None:
        tag = os.getpid() % 100_000
        self._loop_queue = f"lqb{tag}"
        self._names = [f"lqn{tag}-{number}" for number in range(size)]
        self._links = [f"lqv{tag}-{number}" for number in range(size)]
        net = f"10.{100 + tag % 100}.{tag // 100 % 250}"
        self.hosts = [f"{net}.{number + 1}" for number in range(size)]
        self._own = f"{net}.254"

    def start(self) -> None:
        _ip("link", "add", self._loop_queue, "type", "bridge")
        _ip("addr", "add", f"{self._own}/24", "dev", self._loop_queue)
        _ip("link", "set", self._loop_queue, "up")
        for name, link, host in zip(self._names, self._links, self.hosts, strict=True):
            _ip("netns", "add", name)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", link, "master", self._loop_queue, "up")
            _ip("-n", name, "addr", "add", f"{host}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def prefixes(self) -> list[list[str]]:
        """What runs a command inside each namespace."""
        return [["ip", "netns", "exec", name] for name in self._names]

    def isolate(self, number: int) -> None:
        """Cut a member off from everybody."""
        _ip("link", "set", self._links[number], "down")

    def cut_one_way(self, source: int, target: int) -> None:
        """What `source` sends to `target` is dropped; the other way works."""
        _ip("-n", self._names[source], "route", "add", "blackhole", f"{self.hosts[target]}/32")

    def heal(self) -> None:
        for number, (name, link) in enumerate(zip(self._names, self._links, strict=True)):
            _ip("link", "set", link, "up")
            for other, host in enumerate(self.hosts):
                if other != number:
                    _ip("-n", name, "route", "del", "blackhole", f"{host}/32", check=False)

    def stop(self) -> None:
        for name in self._names:
            _ip("netns", "del", name, check=False)
        _ip("link", "del", self._loop_queue, check=False)
