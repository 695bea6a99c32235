"""What telemetry and the ring of decisions cost a node: CPU time of a QoS 1 publish (us), with all
of it off and with each on.

    python -m benchmarks.telemetry.switches [--seconds 3] [--rounds 9]

One node for each variant, all in one run and in turns, so that what else the machine does meets
all of them. Nobody is subscribed, so each publish is a decision (`no_subscriber`), which is the
most that the ring can be asked for; where there is `/metrics`, it is read once a second, as often
as a node collects. The CPU time is that of the whole process; the first round is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.harness.declare import Running
from benchmarks.load.crew import windows
from benchmarks.load.packets import Load
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.node.otlp_collector import Collector

LOAD: Final = Load(publishers=4, names=4, payload=(100, 100), qos=1, window=64)
OFF: Final = ("[telemetry]\nprometheus = false\n", "decisions_max = 0")
VARIANTS: Final = {
    "all off": OFF,
    "ring of 1,000 decisions": (OFF[0], "decisions_max = 1000"),
    "metrics, read once a second": ("[telemetry]\n", OFF[1]),
    "metrics and ring (the defaults)": ("[telemetry]\n", "decisions_max = 1000"),
    "and traces, ratio 0.001": ("[telemetry]\ntrace_ratio = 0.001\n", "decisions_max = 1000"),
}
"""Name -> section `[telemetry]`, and a setting of MQTT."""


def config_of(telemetry: str, setting: str) -> str:
    return PORTS_FREE.replace("[plugins.mqtt]", f"[plugins.mqtt]\n{setting}") + telemetry


@contextlib.contextmanager
def reading(admin: str) -> Iterator[None]:
    """Reads `/metrics` once a second meanwhile; 404, where there is none, costs next to nothing."""
    ended = threading.Event()

    def read() -> None:
        while not ended.wait(1):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://{admin}/metrics", timeout=10).read()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def publish_us(node: NodeProcess, seconds: float) -> float:
    """CPU time of the node for one acknowledged publish."""
    with reading(node.addresses["admin"]):
        return windows(Running((node.pid,), node.mqtt_port), LOAD, seconds)["cpu_us"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3, help="of each turn")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        told = {"OTEL_EXPORTER_OTLP_ENDPOINT": stack.enter_context(Collector()).url}
        nodes = {
            name: stack.enter_context(NodeProcess(folder / str(number), config_of(*each), told))
            for number, (name, each) in enumerate(VARIANTS.items())
        }
        for number in range(options.rounds + 1):
            for name, node in nodes.items():
                used_us = publish_us(node, options.seconds)
                if number:
                    found[name].append(used_us)
    off_us = statistics.median(found["all off"])
    print(f"{'':36}{'median':>8}{'least':>8}{'most':>8}{'more':>8}")
    for name, each in found.items():
        middle = statistics.median(each)
        more = f"{100 * (middle / off_us - 1):.1f}%"
        print(f"{name:36}{middle:8.1f}{min(each):8.1f}{max(each):8.1f}{more:>8}")


if __name__ == "__main__":
    main()
