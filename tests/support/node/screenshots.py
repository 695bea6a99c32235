"""`make screenshots`: pictures of the dashboard of a node that works. Those that the documents show
go into docs/pictures, the others, to be looked at, into build/screenshots."""

from __future__ import annotations

import math
import random
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import paho.mqtt.client as mqtt

import lakemq
from lakemq.broker_core.api.schemas.types import framed
from lakemq.plugins.native.wire.exports import ExportReport
from tests.support.node.admin_api import ask
from tests.support.node.dashboard import AXE, CHROMIUM, ROOT, chromium, dashboard_of
from tests.support.node.node import PORTS_FREE, NodeProcess

TO = ROOT / "docs/pictures"
LOOKED_AT = ROOT / "build/screenshots"
WORKED_S = 60.0
PICTURES = (
    (TO, "dashboard-overview", "/", "light", 1440, 900),
    (TO, "dashboard-topic", "/topics/air", "dark", 1440, 640),
    (TO, "dashboard-explain", "/explain?topic=mqtt&partition=0&offset=0", "light", 1440, 720),
    (TO, "dashboard-dead-letters", "/queues/workers/orders?node=node-1&partition=0&offset=0",
     "light", 1440, 900),
    (LOOKED_AT, "explain", "/explain?topic_name=plant/gate/state&client=gate", "light", 1440, 900),
    (LOOKED_AT, "messages", "/messages?topic=readings", "light", 1440, 640),
    (LOOKED_AT, "queues", "/queues", "light", 1440, 640),
    (LOOKED_AT, "retained", "/retained", "dark", 1440, 640),
    (LOOKED_AT, "bridges", "/bridges", "light", 1440, 640),
    (LOOKED_AT, "bans", "/bans", "light", 1440, 640),
    (LOOKED_AT, "ledger", "/ledger", "light", 1440, 640),
    (LOOKED_AT, "ledger-devices", "/ledger-devices", "dark", 1440, 640),
    (LOOKED_AT, "exports", "/exports", "light", 1440, 640),
    (LOOKED_AT, "keys", "/keys", "light", 1440, 640),
)  # fmt: skip
BRIDGE = """
[[plugins.bridge.links]]
name = "cloud"
url = "mqtt://127.0.0.1:1"
[[plugins.bridge.links.rules]]
direction = "out"
filter = "plant/#"
remote_prefix = "site-7/"
"""
"""Nothing answers there: the page shows a link that is down."""
AVRO = """{"type": "record", "name": "Reading", "fields": [
 {"name": "room", "type": "string"}, {"name": "celsius", "type": "double"}]}"""


def main() -> None:
    """A minute of work, then a picture of each of some pages."""
    if CHROMIUM is None or not AXE.is_file():
        sys.exit("screenshots need chromium, and `make dashboard-assets`")
    for folder_of_some in (TO, LOOKED_AT):
        folder_of_some.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        NodeProcess(Path(folder), PORTS_FREE + BRIDGE) as node,
        dashboard_of(node.addresses["admin"]) as url,
        chromium() as browser,
    ):
        # Plots begin with the first page.
        browser.new_page(base_url=url).goto("/")
        _work(node)
        clients = _rest(node)
        for to, name, path, theme, width, height in PICTURES:
            context = browser.new_context(
                base_url=url, viewport={"width": width, "height": height}, color_scheme=theme
            )
            page = context.new_page()
            page.goto(path)
            if path == "/":
                page.get_by_text("live").wait_for()
            page.screenshot(path=to / f"{name}.png")
            context.close()
        _end(clients)


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
        _end((sensors, screen))


def _rest(node: NodeProcess) -> Sequence[mqtt.Client]:
    """A dead letter, a retained message, values with a schema, a commit of an export, a key, a ban
    and a device that left out numbers; clients that are still connected."""
    with lakemq.connect(node.native, timeout_s=10) as client:
        client.admin.alter_queue("workers", "orders", attempts_max=1, dead_letter="orders-dead")
        client.send("orders", b'{"order": 17, "amount": "?"}', key=b"17")
        with client.queue("orders", group="workers") as queue:
            (record,) = queue.next_batch(1)
            record.reject()
        client.create_topic("readings")
        schema = client.schemas.register("reading", "avro", AVRO)
        for number in range(3):
            value = b"\x0croom-%d" % number + struct.pack("<d", 20.5 + number)
            client.send("readings", framed(schema.schema_id, value), key=b"room-%d" % number)
        told = ExportReport("s3://lake/air", "delta", 41, 12_000, 3, 1_500_000, 800)
        air = lakemq.TopicPartition("air", 0)
        client.reset_offsets("export.air-to-lake", {air: 1}, metadata=told.to_text())
        client.create_topic("meters", config={"ledger": "device=key; sequence=$.seq"})
        for number in (1, 2, 3, 6, 7, 5, 7):
            client.send("meters", b'{"seq": %d}' % number, key=b"meter-4")
    ask(node, "POST", "keys", {"says": "nightly backup", "roles": ["viewer"], "expires_s": 86_400})
    ask(node, "POST", "mqtt/bans", {"kind": "client_id", "value": "pump-7", "why": "floods"})
    gate, screen = _connected(node, "gate"), _connected(node, "wall-screen")
    screen.subscribe("plant/gate/#", qos=1)
    time.sleep(1)
    gate.publish("plant/gate/state", "open", qos=1, retain=True).wait_for_publish(20)
    # The ledger counts, and dead letters are moved, within a second or two.
    time.sleep(3)
    return gate, screen


def _end(clients: Sequence[mqtt.Client]) -> None:
    for each in clients:
        each.disconnect()
        each.loop_stop()


def _connected(node: NodeProcess, name: str) -> mqtt.Client:
    made = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name)
    made.connect("127.0.0.1", node.mqtt_port)
    made.loop_start()
    return made


if __name__ == "__main__":
    main()
