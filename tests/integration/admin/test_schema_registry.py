"""Goal: confluent-kafka's client and serializers work with the broker's registry as with
Confluent's, and what they write is what the SDK reads, and the other way round."""

from __future__ import annotations

import base64
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import lakemq
from lakemq.broker_core.api.schemas.formats import ProtobufFormat
from lakemq.plugins.native.proto.schemas_pb2 import SchemaVersion
from tests.support.node.admin_api import ask
from tests.support.node.node import PORTS_FREE, NodeProcess, unique
from tests.support.node.users import USERS_ONLY, add_user, login

READING: dict[str, Any] = {
    "type": "record", "name": "Reading", "fields": [{"name": "t", "type": "double"}],
}  # fmt: skip
AVRO = json.dumps(READING)
WIDER = json.dumps(
    {**READING, "fields": [*READING["fields"], {"name": "n", "type": "int", "default": 0}]}
)
NARROW = json.dumps({**READING, "fields": [{"name": "other", "type": "string"}]})
JSON = json.dumps({"title": "R", "type": "object", "properties": {"t": {"type": "number"}}})
PROTO = 'syntax = "proto3";\n// as an author writes it\nmessage R { double t = 1; }'


Connect = Callable[..., SchemaRegistryClient]


@pytest.fixture(scope="module")
def connect() -> Iterator[Connect]:
    """Opens clients, each with a cache of its own, and closes them at the end."""
    with contextlib.ExitStack() as clients:

        def opened(node: NodeProcess, **more: Any) -> SchemaRegistryClient:
            url = f"http://{node.addresses['admin']}/api/v1/schema-registry"
            return clients.enter_context(
                SchemaRegistryClient({"url": url, "max.retries": 0, **more})
            )

        yield opened


@pytest.fixture(scope="module")
def registry(node: NodeProcess, connect: Connect) -> SchemaRegistryClient:
    return connect(node)


def refused(error: pytest.ExceptionInfo[SchemaRegistryError]) -> tuple[int, int]:
    return error.value.http_status_code, error.value.error_code


@pytest.mark.parametrize("kind", ["avro", "json-schema", "protobuf"])
def test_values_of_both_clients_are_read_by_both(
    node: NodeProcess, registry: SchemaRegistryClient, kind: str
) -> None:
    topic = unique("both")
    context = SerializationContext(topic, MessageField.VALUE)
    value: Any = {"t": 1.5}
    to_bytes: Any
    if kind == "avro":
        to_bytes, read = AvroSerializer(registry, AVRO), AvroDeserializer(registry)
    elif kind == "json-schema":
        to_bytes = JSONSerializer(JSON, registry)
        read = JSONDeserializer(None, schema_registry_client=registry)
    else:
        value = SchemaVersion(subject="s", version=3)
        to_bytes = ProtobufSerializer(SchemaVersion, registry)
        read = ProtobufDeserializer(SchemaVersion, {}, registry)
    with lakemq.connect(node.native) as client:
        stored = [to_bytes(value, context)]
        subject = f"{topic}-value"
        # The broker checks the values by the schema that Confluent's client has registered.
        client.create_topic(topic, config={"schema": subject})
        client.send(topic, stored[0])
        with pytest.raises(lakemq.SchemaMismatch):
            client.send(topic, stored[0] + b"\xff")
        with client.producer(value_serializer=client.schemas.serializer(subject)) as producer:
            producer.send(topic, value)
        records = [each.value or b"" for each in client.consume(topic)]
        assert len(records) == 2
        assert [read(each, context) for each in records] == [value, value]
        for each in records:
            found = client.schemas.decode(each)
            assert (found if kind != "protobuf" else found.version) == (
                value if kind != "protobuf" else 3
            )


def test_schemas_are_registered_looked_up_and_compared(
    node: NodeProcess, registry: SchemaRegistryClient, connect: Connect
) -> None:
    subject = f"{unique('a')}/b c-value"
    first, wider, narrow = (Schema(text, "AVRO") for text in (AVRO, WIDER, NARROW))
    assert registry.test_compatibility(subject, first)  # nothing to compare with
    one, two = registry.register_schema(subject, first), registry.register_schema(subject, wider)
    assert two > one
    # An older version is found again, whatever its layout; confluent-kafka's cache is not asked.
    laid_out = Schema(json.dumps(READING, indent=4, sort_keys=True), "AVRO")
    other = connect(node)
    assert other.register_schema(subject, laid_out) == one
    assert other.lookup_schema(subject, laid_out).version == 1
    with pytest.raises(SchemaRegistryError) as error:
        registry.lookup_schema(subject, narrow)
    assert refused(error) == (404, 40403)
    assert registry.get_versions(subject) == [1, 2] and registry.get_versions(subject, limit=1) == [
        1
    ]
    found = registry.get_version(subject, 1)
    assert (found.schema_id, found.schema.schema_str) == (one, AVRO)
    latest = registry.get_latest_version(subject)
    assert (latest.version, latest.schema_id, latest.schema.schema_type) == (2, two, "AVRO")
    assert other.get_schema(two).schema_str == WIDER
    assert registry.get_subjects_by_schema_id(one) == [subject]
    (place,) = registry.get_schema_versions(two)
    assert (place.subject, place.version) == (subject, 2)
    assert subject in registry.get_subjects()
    assert registry.get_subjects(subject_prefix=subject) == [subject]
    assert registry.get_subjects(subject_prefix=subject, deleted_only=True) == []
    assert registry.get_referenced_by(subject, 1) == []
    assert not registry.test_compatibility(subject, narrow)
    assert not registry.test_compatibility(subject, narrow, version=1)
    assert registry.test_compatibility_all_versions(subject, first)
    with pytest.raises(SchemaRegistryError) as error:
        registry.register_schema(subject, narrow)
    assert refused(error) == (409, 409) and "other" in str(error.value)
    assert registry.get_schema_types() == ["AVRO", "JSON", "PROTOBUF"]
    assert (registry.get_global_mode(), registry.get_mode(subject)) == ("READWRITE", "READWRITE")
    assert registry.get_contexts() == ["."]
    # The same subject by the SDK.
    with lakemq.connect(node.native) as client:
        assert client.schemas.get(subject=subject, version=1).schema_id == one


def test_rules_are_those_of_the_registry(node: NodeProcess, registry: SchemaRegistryClient) -> None:
    subject = unique("ruled")
    registry.register_schema(subject, Schema(AVRO, "AVRO"))
    assert registry.get_compatibility(subject) == registry.get_compatibility() == "BACKWARD"
    registry.set_compatibility(subject, "full_transitive")
    assert registry.get_compatibility(subject) == "FULL_TRANSITIVE"
    (row,) = ask(node, "GET", f"schemas?q={subject}").data
    assert row["compatibility"] == "full-transitive"
    removed = Schema(json.dumps({**READING, "fields": []}), "AVRO")
    assert not registry.test_compatibility(subject, removed)
    assert registry.delete_config(subject).compatibility_level == "FULL_TRANSITIVE"
    assert registry.get_compatibility(subject) == "BACKWARD"
    assert registry.test_compatibility(subject, removed)
    with pytest.raises(SchemaRegistryError) as error:
        registry.set_compatibility(subject, "sideways")
    assert refused(error) == (422, 42203) and "full-transitive" in str(error.value)


def test_protobuf_is_the_same_as_source_and_as_descriptor(
    node: NodeProcess, registry: SchemaRegistryClient, connect: Connect
) -> None:
    subject = unique("proto")
    with lakemq.connect(node.native) as client:
        made = client.schemas.register(subject, "protobuf", PROTO)
    file = ProtobufFormat(PROTO).file
    sent = Schema(base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF")
    assert registry.register_schema(subject, sent) == made.schema_id
    assert registry.get_versions(subject) == [1]
    assert registry.get_latest_version(subject).schema.schema_str == PROTO
    shown = connect(node).get_schema(made.schema_id, fmt="serialized")
    assert shown.schema_str == sent.schema_str
    file.message_type[0].field[0].options.MergeFromString(b"\x82\xb5\x18\x01x")
    with pytest.raises(SchemaRegistryError) as error:
        registry.register_schema(
            subject, Schema(base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF")
        )
    assert refused(error) == (422, 42201) and "would be lost" in str(error.value)


def test_what_is_deleted_is_gone(registry: SchemaRegistryClient) -> None:
    subject = unique("gone")
    for text in (AVRO, WIDER):
        registry.register_schema(subject, Schema(text, "AVRO"))
    for delete in (registry.delete_subject, lambda name: registry.delete_version(name, 1)):
        with pytest.raises(SchemaRegistryError) as error:
            delete(subject)
        assert refused(error) == (422, 42205) and "permanent=true" in str(error.value)
    assert registry.delete_version(subject, 1, permanent=True) == 1
    assert registry.get_versions(subject) == [2]
    assert registry.delete_subject(subject, permanent=True) == [2]
    with pytest.raises(SchemaRegistryError) as error:
        registry.get_versions(subject)
    assert refused(error) == (404, 40401)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "number", "why"),
    [
        ("GET", "subjects/none/versions/1", None, 404, 40401, "'none' not found"),
        ("GET", "subjects/{there}/versions/9", None, 404, 40402, "version 9 not found"),
        ("GET", "subjects/{there}/versions/first", None, 422, 42202, "'first'"),
        ("GET", "subjects/{there}/versions/0", None, 422, 42202, "'0'"),
        ("GET", "schemas/ids/4000000000", None, 404, 40403, "not found"),
        ("GET", "schemas/ids/one", None, 404, 40403, "not found"),
        ("POST", "subjects/x/versions", {"schema": "{"}, 422, 42201, "not Avro"),
        ("POST", "subjects/x/versions", {"schema": "1", "schemaType": "XML"}, 422, 42201, "'XML'"),
        ("POST", "subjects/x/versions", {"schema": "AA==", "schemaType": "PROTOBUF"}, 422, 42201,
         "neither Protobuf source"),
        ("POST", "subjects/x/versions", {"schema": "AAA", "schemaType": "PROTOBUF"}, 422, 42201,
         "nor base64"),
        ("POST", "subjects/x/versions", {"schema": '"int"', "references": [{"name": "a"}]}, 422,
         42201, "references"),
        ("POST", "subjects/x/versions", {"schema": '"int"', "ruleSet": {"a": 1}}, 422, 42201,
         "ruleSet"),
        ("POST", "subjects/x/versions", {"schema": '"int"', "id": 7}, 422, 42201, "id"),
        ("POST", "subjects/x/versions", {"schema": 5}, 400, 400, "body.schema"),
        ("POST", "subjects/x/versions", {"schema": '"int"', "newer": 1}, 400, 400, "body.newer"),
        ("POST", "subjects/x", {"schema": '"int"'}, 404, 40401, "'x' not found"),
        ("POST", "compatibility/subjects/x/versions/3", {"schema": '"int"'}, 404, 40401, "'x'"),
        ("GET", "config/none", None, 404, 40401, "'none' not found"),
        ("GET", "associations/resources/-/t", None, 404, 404, "no such path"),
        ("PUT", "mode", {"mode": "READONLY"}, 405, 405, "PUT"),
        ("GET", "subjects?limit=many", None, 400, 400, "limit"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_as_confluents_registry_does(
    node: NodeProcess,
    registry: SchemaRegistryClient,
    method: str,
    path: str,
    body: Any,
    status: int,
    number: int,
    why: str,
) -> None:
    registry.register_schema("known-value", Schema(AVRO, "AVRO"))
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    answer = ask(node, method, f"schema-registry/{path.format(there='known-value')}", body, headers)
    assert (answer.status, answer.json["error_code"]) == (status, number), answer
    assert set(answer.json) == {"error_code", "message"}  # the Java client takes no others
    assert why in answer.json["message"]


def test_web_pages_delete_nothing(node: NodeProcess, registry: SchemaRegistryClient) -> None:
    """A DELETE needs no content type here: a page of another site can't send one unasked."""
    subject = unique("kept")
    registry.register_schema(subject, Schema(AVRO, "AVRO"))
    url = f"http://{node.addresses['admin']}/api/v1/schema-registry/subjects/{subject}"
    for method, path, header in (
        ("DELETE", "?permanent=true", {"Origin": "http://elsewhere.example"}),
        ("DELETE", "?permanent=true", {"Sec-Fetch-Site": "cross-site"}),
        ("POST", "/versions", {"Content-Type": "text/plain"}),
    ):
        data = None if method == "DELETE" else b"{}"
        request = urllib.request.Request(url + path, data, header, method=method)
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, timeout=30)
        with error.value:
            assert error.value.code == (415 if method == "POST" else 403)
    assert registry.get_versions(subject) == [1]
    request = urllib.request.Request(f"{url}?permanent=true", method="DELETE")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.read() == b"[1]"


def test_rights_are_those_on_the_subject(tmp_path: Path, connect: Connect) -> None:
    for name in ("root", "ann"):
        add_user(tmp_path, name)
    rules = """
[[security.rules]]
who = ["user:ann"]
operations = ["read", "write", "describe"]
resources = ["schema:ann-*"]
"""
    config = PORTS_FREE + USERS_ONLY.format(folder=tmp_path) + rules
    with NodeProcess(tmp_path / "node", config) as node:

        def of(name: str) -> SchemaRegistryClient:
            info = ":".join(login(name).values())
            return connect(node, **{"basic.auth.user.info": info})

        ann, root = of("ann"), of("root")
        mine = ann.register_schema("ann-value", Schema(AVRO, "AVRO"))
        other = root.register_schema("other-value", Schema(AVRO, "AVRO"))
        assert mine != other
        assert (ann.get_subjects(), root.get_subjects()) == (
            ["ann-value"], ["ann-value", "other-value"],
        )  # fmt: skip
        assert of("ann").get_schema(mine).schema_str == AVRO
        for forbidden in (
            lambda: of("ann").get_schema(other),
            lambda: ann.get_subjects_by_schema_id(other),
            lambda: ann.get_latest_version("other-value"),
            lambda: ann.register_schema("other-value", Schema(WIDER, "AVRO")),
            lambda: ann.lookup_schema("other-value", Schema(AVRO, "AVRO")),
            lambda: ann.set_compatibility("ann-value", "NONE"),
            lambda: ann.set_compatibility(None, "NONE"),
            lambda: ann.delete_subject("ann-value", permanent=True),
        ):
            with pytest.raises(SchemaRegistryError) as error:
                forbidden()
            assert refused(error) == (403, 40301)
        with pytest.raises(SchemaRegistryError) as error:
            connect(node).get_subjects()
        assert refused(error) == (401, 40101)
