"""Goal: the registry against a real broker, and values that do not fit are not stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from typer.testing import CliRunner

import lakemq
from lakemq.broker_core.api.records.batch import encode
from lakemq.plugins.native.cli.schemas import schema
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.native_pb2_grpc import NativeStub
from tests.support.node.node import NodeProcess

V1 = json.dumps(
    {
        "type": "object",
        "properties": {"t": {"type": "number"}},
        "required": ["t"],
        "additionalProperties": False,
    }
)
V2 = json.dumps(
    {
        "type": "object",
        "properties": {"t": {"type": "number"}, "unit": {"type": "string"}},
        "required": ["t"],
        "additionalProperties": False,
    }
)
WRONG = json.dumps({"type": "object", "required": ["t", "unit"]})
AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "t", "type": "double"}]})
PROTO = 'syntax = "proto3"; message Reading { double t = 1; }'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("schemas")) as node:
        yield node


def test_versions_are_numbered_and_rules_are_kept(node: NodeProcess) -> None:
    with lakemq.connect(node.native) as client:
        first = client.schemas.register("r", "json-schema", V1)
        assert client.schemas.register("r", "json-schema", V1) == first
        second = client.schemas.register("r", "json-schema", V2)
        assert (first.version, second.version) == (1, 2) and second.schema_id > first.schema_id
        assert client.schemas.get("r") == second and client.schemas.get("r", 1) == first
        assert client.schemas.get(schema_id=first.schema_id) == first
        problems = client.schemas.check("r", "json-schema", WRONG)
        assert any("$.unit: is required" in each for each in problems)
        with pytest.raises(lakemq.IncompatibleSchema, match=r"\$\.unit"):
            client.schemas.register("r", "json-schema", WRONG)
        with pytest.raises(lakemq.IncompatibleSchema, match="json-schema, not avro"):
            client.schemas.register("r", "avro", AVRO)
        client.schemas.set_compatibility("r", "none")
        assert client.schemas.register("r", "json-schema", WRONG).version == 3
        client.schemas.set_compatibility("r", "forward-transitive")
        assert client.schemas.check("r", "json-schema", "true")
        with pytest.raises(lakemq.InvalidRequest, match="sideways"):
            client.schemas.set_compatibility("r", "sideways")
        with pytest.raises(lakemq.InvalidRequest, match="JSON"):
            client.schemas.register("r2", "json-schema", "{")
        client.schemas.delete("r", 3)
        (found,) = client.schemas.subjects()
        assert (found.name, found.compatibility) == ("r", "forward-transitive")
        assert [version for version, _ in found.versions] == [1, 2]
        client.schemas.delete("r")
        for missing in (lambda: client.schemas.get("r"), lambda: client.schemas.delete("r")):
            with pytest.raises(lakemq.UnknownSchema):
                missing()


def test_a_topic_asks_for_a_schema_that_is_there(node: NodeProcess) -> None:
    with lakemq.connect(node.native) as client:
        why = "schema is 'nosuch', a subject without a version"
        with pytest.raises(lakemq.InvalidRequest, match=why):
            client.create_topic("no-schema", 1, {"schema": "nosuch"})
        client.create_topic("no-schema", 1)
        with pytest.raises(lakemq.InvalidRequest, match=why):
            client.admin.alter_topic("no-schema", {"schema": "nosuch"})
        client.schemas.register("some", "json-schema", V1)
        client.admin.alter_topic("no-schema", {"schema": "some"})
        client.admin.alter_topic("no-schema", {"schema": ""})


def test_no_schema_holds_the_node_up(node: NodeProcess) -> None:
    with lakemq.connect(node.native) as client:
        backtracking = '{"properties": {"a": {"pattern": "^(a+)+$"}}}'
        client.schemas.register("patterns", "json-schema", backtracking)
        client.create_topic("patterns", 1, {"schema": "patterns"})
        with pytest.raises(lakemq.SchemaMismatch, match=r"topic patterns, record 0: \$\.a"):
            client.send("patterns", b'{"a": "%s!"}' % (b"a" * 50))
        with pytest.raises(lakemq.SchemaMismatch, match="deeper than 100 levels"):
            client.send("patterns", b"[" * 5000)
        for text in ('{"pattern": "(?=a)b"}', "1e999999", "[" * 50_000):
            with pytest.raises(lakemq.InvalidRequest, match="schema: "):
                client.schemas.register("wrong", "json-schema", text)
        deep = '{"type": "array", "items": ' * 2000 + '"int"' + "}" * 2000
        with pytest.raises(lakemq.InvalidRequest, match="schema: "):
            client.schemas.register("wrong", "avro", deep)


def test_many_values_are_compared_in_the_order_of_sending(node: NodeProcess) -> None:
    with lakemq.connect(node.native) as client:
        client.schemas.register("order", "json-schema", V1)
        client.create_topic("order", 1, {"schema": "order"})
        batches = [  # large ones are compared in a thread, small ones at once
            encode(lakemq.Columns([b'{"t": %d}' % number] * (400 if number % 2 else 1)), now_ms=1)
            for number in range(30)
        ]
        requests = [
            pb.ProduceRequest(topic="order", partition=0, acks=pb.ACKS_LEADER, batch=batch)
            for batch in batches
        ]
        with grpc.insecure_channel(node.native) as channel:
            answers = list(NativeStub(channel).Produce(iter(requests), timeout=60))
        assert not any(each.HasField("error") for each in answers)
        sent = [each.value for each in client.consume("order")]
        assert sent == sorted(sent, key=lambda value: int(value[5:-1]))  # type: ignore[index]
        assert len(sent) == 15 * 401


@pytest.mark.parametrize(
    ("kind", "text"), [("json-schema", V1), ("avro", AVRO), ("protobuf", PROTO)]
)
async def test_values_that_do_not_fit_are_not_stored(
    node: NodeProcess, kind: str, text: str
) -> None:
    topic = f"checked-{kind}"
    async with lakemq.Client(node.native) as client:
        await client.schemas.register(topic, kind, text)
        await client.create_topic(topic, 1, {"schema": topic})
        to_bytes = await client.schemas.serializer(topic)
        with pytest.raises(lakemq.SchemaMismatch, match="t"):
            to_bytes({"t": "warm"})
        good = to_bytes({"t": 20.5})
        other = await client.schemas.register(f"{topic}-other", kind, text)
        async with await client.producer() as producer:
            assert (await producer.send(topic, good)).offset == 0
            await producer.send(topic, None)
            for wrong in (
                good[:1],
                b"\x00" + good[5:],
                good[:-1] or b"x",
                lakemq.Serializer(other)({"t": 1.0}),
            ):
                with pytest.raises(lakemq.SchemaMismatch, match="record 0"):
                    await producer.send(topic, wrong)
            columns = lakemq.Columns([good, good, b"\x00nonsense"])
            with pytest.raises(lakemq.SchemaMismatch, match="record 2"):
                await producer.send_batch(topic, columns)
            assert (await producer.send(topic, good)).offset == 2
        found = [each.value async for each in client.consume(topic)]
        assert found == [good, None, good]
        decoded = await client.schemas.decode(good)
        assert (decoded.t if kind == "protobuf" else decoded["t"]) == 20.5


async def test_schemas_are_there_after_a_restart_and_for_plain_json(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path).start()
    try:
        with lakemq.connect(node.native) as client:
            client.schemas.register("plain", "json-schema", V1)
            client.create_topic("plain", 1, {"schema": "plain"})
        node.kill()
        node.start()
        with lakemq.connect(node.native) as client:
            client.send("plain", b'{"t": 1}')
            with pytest.raises(lakemq.SchemaMismatch, match=r"record 0: \$\.t"):
                client.send("plain", b'{"t": "warm"}')
            client.schemas.register("plain", "json-schema", V2)
            client.schemas.register("gone", "json-schema", V1)
            client.create_topic("orphan", 1, {"schema": "gone"})
            client.schemas.delete("gone")
            with pytest.raises(lakemq.SchemaMismatch, match="has none"):
                client.send("orphan", b"{}")
    finally:
        node.stop()


def test_devices_are_checked_too(node: NodeProcess) -> None:
    with lakemq.connect(node.native) as client:
        client.schemas.register("devices", "json-schema", V1)
        if "mqtt" not in [each.name for each in client.topics()]:
            client.create_topic("mqtt", 1)
        client.admin.alter_topic("mqtt", {"schema": "devices"})
        before = sum(each.high_watermark for each in client.describe_topic("mqtt").partitions)
        device = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        codes: dict[int, int] = {}
        device.on_publish = lambda _c, _u, mid, code, _p: codes.update({mid: code.value})
        device.connect("127.0.0.1", node.mqtt_port)
        payloads = [b'{"t": "warm"}' if number % 5 == 3 else b'{"t": 1}' for number in range(40)]
        sent = [device.publish("room/1", payload, qos=1) for payload in payloads]
        device.loop_start()  # they come together; what does not fit touches no other
        for info in sent:
            info.wait_for_publish(10)
        device.disconnect()
        device.loop_stop()
        after = sum(each.high_watermark for each in client.describe_topic("mqtt").partitions)
        assert after == before + 32
        refused = [number for number, info in enumerate(sent) if codes[info.mid] >= 0x80]
        assert refused == list(range(3, 40, 5)), codes
        client.admin.alter_topic("mqtt", reset=["schema"])


def test_the_command_line(node: NodeProcess, tmp_path: Path) -> None:
    def run(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(schema, [*words, "--bootstrap", node.native])
        assert result.exit_code == code, result.output
        return result.output

    first, wrong = tmp_path / "a.avsc", tmp_path / "b.avsc"
    first.write_text(AVRO)
    wrong.write_text(AVRO.replace("double", "string"))
    assert "version 1" in run("register", "cli", str(first))
    assert "can't be read" in run("check", "cli", str(wrong), code=1)
    assert "can be registered" in run("check", "cli", str(first))
    assert json.loads(run("get", "cli")) == json.loads(AVRO)
    run("compatibility", "none", "--subject", "cli")
    assert "version 2" in run("register", "cli", str(wrong))
    assert "cli" in run("list")
    run("delete", "cli", "-y")
    assert "cli" not in run("list")
