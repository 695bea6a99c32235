"""The TCP connections of a port of this process, as Linux tells them, and how to end one.

gRPC neither tells which connections it has nor closes one. Linux does: `sock_diag(7)` lists them,
and a connection of this process can be shut down through a duplicate of its descriptor.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
import struct
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

_SOCK_DIAG: Final = 4
"""The netlink family NETLINK_SOCK_DIAG."""
_TCP: Final = 18
"""The request TCPDIAG_GETSOCK, which `ss` sends too: TCP over IPv4 and IPv6 in one answer."""
_DUMP: Final = 0x301
"""NLM_F_REQUEST | NLM_F_DUMP."""
_ERROR, _DONE = 2, 3
_ESTABLISHED: Final = 1 << 1
_INFO: Final = 2
"""The extension INET_DIAG_INFO: `struct tcp_info`."""
_BYTES_RECEIVED_AT: Final = 128
"""Where `tcp_info.tcpi_bytes_received` is."""
_HEADER: Final = struct.Struct("=IHHII")
_ADDRESSES: Final = struct.Struct(">4xHH16s16s")
_COUNTS: Final = struct.Struct("=IIIII")
_COUNTS_AT: Final = 52
_ATTRIBUTES_AT: Final = 72
_RECEIVE_BYTES: Final = 1 << 16


class TcpConnection(NamedTuple):
    """An accepted connection."""

    host: str
    """Of the peer; IPv4 in IPv6 is IPv4."""
    port: int
    """Of the peer."""
    inode: int
    """Tells it from others of this process, before and after."""
    bytes_received: int
    """Since it was accepted."""


def connections_of(port: int) -> list[TcpConnection]:
    """All that are established with a local port. OSError where the system does not tell."""
    if not hasattr(socket, "AF_NETLINK"):
        raise OSError(errno.ENOTSUP, "this system does not list connections by netlink(7)")
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG
    ) as sock:
        sock.settimeout(1.0)
        # Both families at once: for each request Linux walks its whole table of connections, which
        # takes a millisecond on a machine with much memory, however few there are.
        sock.send(_request(port))
        return [_connection(message) for message in _messages(sock)]


def _request(port: int) -> bytes:
    body = struct.pack("=BBBB", socket.AF_UNSPEC, 0, 0, 1 << (_INFO - 1))
    body += struct.pack(">HH32x", port, 0) + struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
    body += struct.pack("=II", _ESTABLISHED, 0)
    return _HEADER.pack(_HEADER.size + len(body), _TCP, _DUMP, 1, 0) + body


def _messages(sock: socket.socket) -> Iterator[bytes]:
    while True:
        data = sock.recv(_RECEIVE_BYTES)
        at = 0
        while at + _HEADER.size <= len(data):
            size, kind, *_ = _HEADER.unpack_from(data, at)
            if kind == _DONE:
                return
            if kind == _ERROR:
                number = -struct.unpack_from("=i", data, at + _HEADER.size)[0]
                raise OSError(number, os.strerror(number))
            yield data[at + _HEADER.size : at + size]
            # Netlink messages are aligned to 4 bytes (NLMSG_ALIGN).
            at += (size + 3) & ~3


def _connection(message: bytes) -> TcpConnection:
    _, port, _, peer = _ADDRESSES.unpack_from(message)
    # A socket bound to :: lists its IPv4 clients as mapped IPv6 addresses.
    if message[0] == socket.AF_INET:
        host = str(ipaddress.IPv4Address(peer[:4]))
    else:
        address = ipaddress.IPv6Address(peer)
        host = str(address.ipv4_mapped or address)
    inode = _COUNTS.unpack_from(message, _COUNTS_AT)[4]
    return TcpConnection(host, port, inode, _bytes_received(message))


def _bytes_received(message: bytes) -> int:
    at = _ATTRIBUTES_AT
    while at + 4 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        if kind == _INFO and size >= 4 + _BYTES_RECEIVED_AT + 8:
            return int(struct.unpack_from("=Q", message, at + 4 + _BYTES_RECEIVED_AT)[0])
        # Attributes too (RTA_ALIGN); a size of 0 must not make this endless.
        at += max(4, (size + 3) & ~3)
    return 0


class OwnConnections:
    """Which connections of a port that processes share are of this one."""

    def __init__(self) -> None:
        self._own: set[int] = set()
        self._others: set[int] = set()
        self._missed: set[int] = set()
        """Inodes that were not among ours at the last look."""

    def of(self, seen: Sequence[TcpConnection]) -> list[TcpConnection]:
        """Those of this process. Descriptors are looked at only for connections that are new: an
        accepted socket never goes to another process."""
        there = {each.inode for each in seen}
        unknown = there - self._own - self._others
        if unknown:
            found = unknown & _own_inodes()
            missed = unknown - found
            self._own |= found
            # accept(2) gives a socket its inode before it has a descriptor: it is looked at twice.
            self._others |= missed & self._missed
            self._missed = missed
        self._own &= there
        self._others &= there
        return [each for each in seen if each.inode in self._own]


def _own_inodes() -> set[int]:
    """Of all sockets of this process."""
    found: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def shut_down(inodes: Collection[int]) -> None:
    """End these connections of this process; their owners see the end."""
    wanted = set(inodes)
    for name in os.listdir("/proc/self/fd") if wanted else ():
        try:
            # A duplicate stays valid where gRPC closes its own meanwhile; a number might be of
            # another file by the time it is used.
            duplicate = os.dup(int(name))
        except OSError:  # closed meanwhile
            continue
        status = os.fstat(duplicate)
        if not stat.S_ISSOCK(status.st_mode) or status.st_ino not in wanted:
            os.close(duplicate)
            continue
        with socket.socket(fileno=duplicate) as sock:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:  # the peer was quicker
                continue
