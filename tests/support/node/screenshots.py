"""`make screenshots`: pictures of the dashboard of a node that works, into docs/pictures."""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
from pathlib import Path

import paho.mqtt.client as mqtt

import lakemq
from tests.support.node.dashboard import AXE, CHROMIUM, ROOT, chromium, dashboard_of
from tests.support.node.node import NodeProcess

TO = ROOT / "docs/pictures"
WORKED_S = 60.0
PICTURES = (
    ("dashboard-overview", "/", "light", 1440, 900),
    ("dashboard-topic", "/topics/air", "dark", 1440, 640),
)


def main() -> None:
    """A minute of work, then a picture of each of some pages."""
    if CHROMIUM is None or not AXE.is_file():
        sys.exit("screenshots need chromium, and `make dashboard-assets`")
    TO.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        NodeProcess(Path(folder)) as node,
        dashboard_of(node.addresses["admin"]) as url,
        chromium() as browser,
    ):
        # Plots begin with the first page.
        browser.new_page(base_url=url).goto("/")
        _work(node)
        for name, path, theme, width, height in PICTURES:
            context = browser.new_context(
                base_url=url, viewport={"width": width, "height": height}, color_scheme=theme
            )
            page = context.new_page()
            page.goto(path)
            if path == "/":
                page.get_by_text("live").wait_for()
            page.screenshot(path=TO / f"{name}.png")
            context.close()


def _work(node: NodeProcess) -> None:
    """Sensors publish over MQTT, and a screen listens."""
    with lakemq.connect(node.native, timeout_s=10) as client:
        for name, partitions in (("air", 3), ("machines", 6), ("orders", 1)):
            client.create_topic(name, partitions=partitions)
        sensors, screen = _connected(node, "sensors"), _connected(node, "wall-screen")
        screen.subscribe("plant/#", qos=0)
        began = time.monotonic()
        while (now := time.monotonic() - began) < WORKED_S:
            for number in range(round(12 + 8 * math.sin(now / 12) + random.random() * 4)):
                value = f'{{"celsius": {20 + random.random():.2f}, "sensor": {number}}}'
                sensors.publish(f"plant/{number}", value, qos=0)
                client.send("air", value.encode(), key=b"room-%d" % number)
            time.sleep(0.2)
        for each in (sensors, screen):
            each.disconnect()
            each.loop_stop()


def _connected(node: NodeProcess, name: str) -> mqtt.Client:
    made = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name)
    made.connect("127.0.0.1", node.mqtt_port)
    made.loop_start()
    return made


if __name__ == "__main__":
    main()
