"""Goal: clients that others wrote get from a real node what they ask for: aiomqtt, mosquitto_pub
and mosquitto_sub, mqtt.js over WebSocket. (paho and amqtt's client have files of their own.)
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiomqtt
import pytest
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from lakemq import connect
from tests.support.mqtt.mqtt_js import installed
from tests.support.node.node import PORTS_FREE, NodeProcess

WAIT_S = 20
CONFIG = (
    PORTS_FREE
    + """
[[plugins.mqtt.listeners]]
name = "ws"
transport = "websocket"
port = 0
"""
)
needs_mosquitto_clients = pytest.mark.skipif(
    not (shutil.which("mosquitto_pub") and shutil.which("mosquitto_sub")),
    reason="mosquitto_pub and mosquitto_sub are not installed (apt-get install mosquitto-clients)",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("clients"), CONFIG) as node:
        yield node


# -- aiomqtt


def client_of(node: NodeProcess, name: str, version: int, *, clean: bool = True) -> aiomqtt.Client:
    if version == 5:
        start = Properties(1)
        start.SessionExpiryInterval = 0 if clean else 60
        return aiomqtt.Client(
            "127.0.0.1", node.mqtt_port, identifier=name, clean_start=clean, properties=start,
            protocol=aiomqtt.ProtocolVersion.V5,
        )  # fmt: skip
    return aiomqtt.Client(
        "127.0.0.1", node.mqtt_port, identifier=name, clean_session=clean,
        protocol=aiomqtt.ProtocolVersion.V311,
    )  # fmt: skip


async def taken(client: aiomqtt.Client, count: int) -> list[aiomqtt.Message]:
    got: list[aiomqtt.Message] = []
    async with asyncio.timeout(WAIT_S):
        while len(got) < count:
            got.append(await anext(client.messages))
    return got


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_aiomqtt_publishes_and_subscribes(node: NodeProcess, version: int, qos: int) -> None:
    topic = f"aio/{version}/{qos}"
    async with client_of(node, "r", version) as reader, client_of(node, "s", version) as sender:
        await reader.subscribe(f"aio/{version}/+", qos)
        for number in range(100):
            await sender.publish(topic, b"%d" % number, qos)
        got = await taken(reader, 100)
    assert [(str(one.topic), one.payload, one.qos) for one in got] == [
        (topic, b"%d" % number, qos) for number in range(100)
    ]


@pytest.mark.parametrize("version", [4, 5])
async def test_aiomqtt_finds_its_session_again(node: NodeProcess, version: int) -> None:
    name, topic = f"again-{version}", f"again/{version}"
    async with client_of(node, name, version, clean=False) as reader:
        await reader.subscribe(topic, 1)
    async with client_of(node, "s", version) as sender:
        await sender.publish(topic, b"while away", 1)
    async with client_of(node, name, version, clean=False) as reader:
        assert [one.payload for one in await taken(reader, 1)] == [b"while away"]


async def test_aiomqtt_gets_properties_and_its_will_is_published(node: NodeProcess) -> None:
    will = aiomqtt.Will("will/x", b"gone", 1)
    watcher = client_of(node, "w", 5)
    async with watcher:
        await watcher.subscribe("will/#", options=SubscribeOptions(qos=1, noLocal=True))
        properties = Properties(3)
        properties.UserProperty = [("k", "v"), ("k", "w")]
        properties.ContentType = "text/plain"
        async with client_of(node, "s", 5) as sender:
            await sender.publish("will/p", b"x", 1, properties=properties)
        victim = aiomqtt.Client(
            "127.0.0.1", node.mqtt_port, identifier="victim", will=will,
            protocol=aiomqtt.ProtocolVersion.V5,
        )  # fmt: skip
        async with victim, client_of(node, "victim", 5):
            got = await taken(watcher, 2)
            with pytest.raises(aiomqtt.MqttError):  # taken over
                await taken(victim, 1)
    assert got[0].properties is not None
    assert got[0].properties.UserProperty == [("k", "v"), ("k", "w")]
    assert got[0].properties.ContentType == "text/plain"
    assert (str(got[1].topic), got[1].payload) == ("will/x", b"gone")


# -- Mosquitto's


@needs_mosquitto_clients
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_mosquitto_pub_and_sub(node: NodeProcess, version: str) -> None:
    port, topic = str(node.mqtt_port), f"tools/{version}"
    reader = subprocess.Popen(
        ["mosquitto_sub", "-p", port, "-V", version, "-t", topic, "-q", "2", "-C", "501",
         "-W", "30", "-F", "%t %q %p"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        # What is retained comes when the subscription stands, whenever it was published.
        publish = ["mosquitto_pub", "-p", port, "-V", version, "-t", topic, "-q", "2"]
        subprocess.run([*publish, "-r", "-m", "first"], check=True, timeout=WAIT_S)
        assert reader.stdout is not None
        assert reader.stdout.readline() == f"{topic} 2 first\n"
        lines = "".join(f"{number}\n" for number in range(500))
        subprocess.run([*publish, "-l"], input=lines, text=True, check=True, timeout=WAIT_S)
        out, _ = reader.communicate(timeout=40)
    finally:
        reader.kill()
        reader.communicate()
    assert out.splitlines() == [f"{topic} 2 {number}" for number in range(500)]
    with connect(node.native) as client:
        stored = [one.value for one in client.consume("mqtt") if one.key == topic.encode()]
    assert stored == [b"first", *(b"%d" % number for number in range(500))]


@needs_mosquitto_clients
def test_mosquitto_sub_gets_what_was_retained_and_what_waited(node: NodeProcess) -> None:
    port = str(node.mqtt_port)

    def sub(*more: str) -> str:
        return subprocess.run(
            ["mosquitto_sub", "-p", port, "-q", "1", "-W", "10", *more],
            capture_output=True, text=True, check=False, timeout=WAIT_S,
        ).stdout  # fmt: skip

    def pub(*more: str) -> None:
        subprocess.run(["mosquitto_pub", "-p", port, "-q", "1", *more], check=True, timeout=WAIT_S)

    pub("-t", "kept/1", "-r", "-m", "retained")
    assert sub("-t", "kept/+", "-C", "1", "-F", "%r %t %p") == "1 kept/1 retained\n"
    sub("-i", "durable", "-c", "-t", "queued", "-E")
    pub("-t", "queued", "-m", "one")
    pub("-t", "queued", "-m", "two")
    assert sub("-i", "durable", "-c", "-t", "queued", "-C", "2") == "one\ntwo\n"


# -- mqtt.js

SCRIPT = """
const mqtt = require("mqtt");
const [url, version, count] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const options = {protocolVersion: version, reconnectPeriod: 0, clean: true};
const got = [];
const reader = mqtt.connect(url, {...options, clientId: `js-r-${version}`});
const fail = (error) => { console.error(String(error)); process.exit(1); };
reader.on("error", fail);
reader.on("connect", () => reader.subscribe(`js/${version}/#`, {qos: 2}, (error, granted) => {
  if (error) fail(error);
  const sender = mqtt.connect(url, {...options, clientId: `js-s-${version}`});
  sender.on("error", fail);
  sender.on("connect", () => {
    for (let n = 0; n < count; n++)
      sender.publish(`js/${version}/${n % 3}`, String(n), {qos: n % 3});
    sender.publish(`js/${version}/large`, Buffer.alloc(300000, 7), {qos: 1});
  });
  reader.on("message", (topic, payload, packet) => {
    got.push([topic, payload.length > 100 ? payload.length : payload.toString(), packet.qos]);
    if (got.length === count + 1)
      sender.end(false, {}, () => reader.end(false, {}, () => console.log(JSON.stringify(got))));
  });
}));
"""


@pytest.fixture(scope="module")
def mqtt_js(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mqtt.js."""
    folder = installed(tmp_path_factory.mktemp("js"))
    (folder / "client.js").write_text(SCRIPT)
    return folder


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("transport", ["ws", "mqtt"])
def test_mqtt_js(node: NodeProcess, mqtt_js: Path, transport: str, version: int) -> None:
    address = node.addresses[transport]
    url = f"ws://{address}/mqtt" if transport == "ws" else f"mqtt://{address}"
    count = 300
    run = subprocess.run(
        ["node", "client.js", url, str(version), str(count)],
        cwd=mqtt_js, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    got = [tuple(each) for each in json.loads(run.stdout)]
    wanted = [(f"js/{version}/{n % 3}", str(n), n % 3) for n in range(count)]
    assert sorted(got) == sorted([*wanted, (f"js/{version}/large", 300_000, 1)])  # type: ignore[type-var]
    for qos in (1, 2):
        mine = [text for topic, text, _ in got if topic == f"js/{version}/{qos}"]
        assert mine == [str(n) for n in range(count) if n % 3 == qos], "out of order"


BURST = """
const mqtt = require("mqtt");
const [url, count] = [process.argv[2], Number(process.argv[3])];
const sender = mqtt.connect(url, {protocolVersion: 5, reconnectPeriod: 0, clientId: "js-burst"});
const fail = (error) => { console.error(String(error)); process.exit(1); };
let done = 0;
sender.on("error", fail);
sender.on("disconnect", (packet) => fail(`DISCONNECT ${packet.reasonCode}`));
sender.on("connect", (connack) => {
  console.log(connack.properties.receiveMaximum);
  for (let n = 0; n < count; n++)
    sender.publish("burst", String(n), {qos: 1 + n % 2}, (error) => {
      if (error) fail(error);
      if (++done === count) sender.end(false, {}, () => console.log(done));
    });
});
"""


def test_mqtt_js_may_send_more_than_the_receive_maximum(node: NodeProcess, mqtt_js: Path) -> None:
    """It does, whatever CONNACK says; it is slowed down rather than disconnected."""
    (mqtt_js / "burst.js").write_text(BURST)
    run = subprocess.run(
        ["node", "burst.js", f"mqtt://{node.addresses['mqtt']}", "6001"],
        cwd=mqtt_js, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["1000", "6001"]
