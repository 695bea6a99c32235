"""Goal: a client that was cut off says that the broker speaks TLS only where it does, whatever the
other side does to the question, and leaves no socket open."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

import pytest

from lakemq.plugins.native.sdk.net.addresses import Bootstrap
from lakemq.plugins.native.sdk.net.handshakes import tls_mistake


def _reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _alert(peer: socket.socket) -> None:
    peer.recv(1 << 16)
    peer.sendall(b"\x15\x03\x03\x00\x02\x02\x28")  # a TLS server that can't agree: fatal, 40


def _settings(peer: socket.socket) -> None:
    peer.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # gRPC without TLS begins with it


@pytest.mark.parametrize(
    ("does", "told"),
    [(_reset, ""), (_alert, "it speaks TLS: give tls="), (_settings, "")],
)
def test_what_the_other_side_answers(does: Callable[[socket.socket], None], told: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                does(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert tls_mistake("Connection reset by peer", Bootstrap(address)) == told
        thread.join()
