"""Goal: QoS 2 is exactly once from client to client, whichever of its steps the broker dies at.

Method: one paho client with a session of its own publishes numbers to itself. The broker is killed
with SIGKILL at each named step in turn (`tests/support/mqtt/crash_points.py`), and started again on
the same folder with the next one armed; so also what is finished after a crash crashes again. All
13 steps are taken with LAKEMQ_EVERY_CRASH_POINT=1, else four.
"""

from __future__ import annotations

import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

import paho.mqtt.client as paho
import pytest

import lakemq
from lakemq.plugins.mqtt.server.links import SocketLink
from tests.support.mqtt.crash_points import POINTS, VARIABLE
from tests.support.mqtt.faithful_paho import Paho
from tests.support.node.node import NodeProcess, ports_kept
from tests.support.platforms.compiled import REASON, is_compiled

pytestmark = [
    pytest.mark.fault,
    pytest.mark.timeout(600),
    pytest.mark.skipif(is_compiled(SocketLink), reason=REASON),
]
STEPS = list(POINTS)
if os.environ.get("LAKEMQ_EVERY_CRASH_POINT") != "1":
    STEPS = ["pubrec_sent", "release_kept", "delivery_kept", "receipt_kept"]
WAIT_S = 60
LAST = 1000
ROOT = Path(__file__).parents[3]


class ArmedNode(NodeProcess):
    """A node that dies at a point."""

    def __init__(self, folder: Path, config: str) -> None:
        program = folder / "program"
        folder.mkdir(parents=True)
        # NodeProcess calls a Python with `-m lakemq`; this one leaves those two words out.
        program.write_text(
            f"#!/bin/sh\nshift 2\nexec {shlex.quote(sys.executable)} "
            f'-m tests.support.mqtt.crash_points "$@"\n'
        )
        program.chmod(0o700)
        super().__init__(folder, config, python=str(program), cwd=ROOT)
        self.died_early = False
        """Whether it came to its point before it was ready: its client connects again at once."""

    def start(self, timeout_s: float = 90.0) -> Self:
        self.died_early = False
        try:
            return super().start(timeout_s)
        except AssertionError:
            if not self.died_early:
                raise
        return self

    def kill(self) -> None:
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.died_early = self.process.wait(0.5) == -signal.SIGKILL
        super().kill()

    def arm(self, point: str) -> None:
        self._environment = {VARIABLE: point, "PYTHONPATH": str(ROOT)}

    def wait_for_death(self, point: str) -> None:
        if self.died_early:
            return
        assert self.process is not None
        try:
            code = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the broker did not come to {point}") from None
        assert code == -9, f"{point}: {self.log_file.read_text()}"
        self.kill()


def client_of(port: int, taken: queue.Queue[int]) -> paho.Client:
    """Subscribed when this returns: what is published before that, nobody promised to deliver."""
    subscribed = threading.Event()
    client = Paho(paho.CallbackAPIVersion.VERSION2, client_id="d", clean_session=False)
    client.on_connect = lambda c, *_: c.subscribe("n", 2)
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda c, u, message: taken.put(int(message.payload))
    client.reconnect_delay_set(0.05, 0.2)  # type: ignore[arg-type]
    client.connect("127.0.0.1", port, keepalive=30)
    client.loop_start()
    assert subscribed.wait(WAIT_S)
    return client


def received(taken: queue.Queue[int], client: paho.Client, count: int) -> list[int]:
    """Wait for so many different numbers, and then for a last publish: what came twice came before
    it."""
    found: list[int] = []
    while len(set(found)) < count:
        found.append(taken.get(timeout=WAIT_S))
    client.publish("n", b"%d" % LAST, 2)
    while LAST not in found:
        found.append(taken.get(timeout=WAIT_S))
    return found


def test_each_step(tmp_path: Path) -> None:
    node, taken = ArmedNode(tmp_path / "node", ports_kept("mqtt")), queue.Queue[int]()
    client, points = None, [*STEPS, ""]
    try:
        node.arm(points[0])
        node.start()
        client = client_of(node.mqtt_port, taken)
        for number, (point, following) in enumerate(zip(points, points[1:], strict=False)):
            client.publish("n", b"%d" % number, 2)
            node.wait_for_death(point)
            node.arm(following)
            node.start()
        expected = [*range(len(STEPS)), LAST]
        assert sorted(received(taken, client, len(STEPS))) == expected
        with lakemq.connect(node.native) as log:
            stored = [int(each.value or b"") for each in log.consume("mqtt")]
        assert sorted(stored) == expected
    finally:
        if client is not None:
            client.disconnect()
            client.loop_stop()
        node.kill()
