"""Goal: records, users, rules, quotas, schemas, schedules and the audit log over the admin API."""

from __future__ import annotations

import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from urllib.parse import quote

import paho.mqtt.client as paho
import pytest
import typer
from typer.testing import CliRunner

import lakemq
from lakemq.cli.commands import app as lakemq_app
from lakemq.plugins.admin.cli.audit import audit
from lakemq.plugins.native.wire.exports import ExportReport
from lakemq.spark_plugin.cli.commands import export_app
from tests.support.node.admin_api import ask
from tests.support.node.node import NodeProcess, unique


def test_records_are_published_and_read(node: NodeProcess) -> None:
    name = unique("http")
    ask(node, "POST", "topics", {"name": name})
    path, read = f"topics/{name}/records", f"topics/{name}/partitions/0/records"
    body = {
        "records": [
            {"key": "a", "value": "eins", "headers": [{"name": "h", "value": "1"}]},
            {"value": "/+8=", "value_encoding": "base64", "timestamp_ms": 1_700_000_000_000},
            {"value": {"t": 21.5}, "value_encoding": "json"},
            {"key": "a", "value": None},
        ]
    }
    for _ in range(2):  # a repeat is answered, and nothing stored
        done = ask(node, "POST", path, body, {"Idempotency-Key": "once"})
        assert (done.status, done.json["stored"]) == (200, 4), done
    assert [each["offset"] for each in done.json["outcomes"]] == [0, 1, 2, 3]
    found = ask(node, "GET", f"{read}?limit=3").json
    assert (found["next_offset"], found["high_watermark"]) == (3, 4)
    first, second, third = found["records"]
    assert (first["key"], first["value"], first["headers"][0]["value"]) == ("a", "eins", "1")
    assert (second["value"], second["value_encoding"]) == ("/+8=", "base64")
    assert second["timestamp_ms"] == 1_700_000_000_000
    assert third["value"] == '{"t":21.5}'
    (last,) = ask(node, "GET", f"{read}?offset=3").json["records"]
    assert (last["offset"], last["value"]) == (3, None)
    (cut,) = ask(node, "GET", f"{read}?limit=1&value_max_bytes=2").json["records"]
    assert (cut["value"], cut["value_bytes"], cut["truncated"]) == ("ei", 4, True)
    at_time = ask(node, "GET", f"{read}?time_ms=1700000000001&limit=1").json["records"]
    assert at_time[0]["offset"] in (0, 2)
    assert ask(node, "GET", f"{read}?offset=9").json["code"] == "OFFSET_OUT_OF_RANGE"
    assert ask(node, "GET", f"{read}?offset=4").json["records"] == []
    wrong = ask(node, "POST", path, {"records": [{"value": "?", "value_encoding": "base64"}]})
    assert (wrong.status, wrong.json["detail"]) == (400, "value: it is not base64")


def test_a_reader_waits_for_a_record(node: NodeProcess) -> None:
    name = unique("polled")
    ask(node, "POST", "topics", {"name": name})
    read = f"topics/{name}/partitions/0/records?offset=0&wait_ms=20000"
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ask, node, "GET", read)
        time.sleep(0.2)
        raw = urllib.request.Request(
            f"http://{node.addresses['admin']}/api/v1/topics/{name}/records?key=k", b"\x00raw",
            {"Content-Type": "application/octet-stream"}, method="POST",
        )  # fmt: skip
        urllib.request.urlopen(raw).close()
        (record,) = waiting.result(15).json["records"]
    assert (record["key"], record["value"]) == ("k", "\x00raw")


def test_users_rules_and_quotas(node: NodeProcess) -> None:
    user = unique("ann")
    body = {"name": user, "password": "a long secret", "roles": ["viewer"]}
    assert ask(node, "POST", "users?dry_run=true", body).status == 200
    assert ask(node, "POST", "users", body).status == 201
    assert ask(node, "POST", "users", body).json["code"] == "CONFLICT"
    changed = ask(node, "PATCH", f"users/{user}", {"disabled": True}).json
    assert (changed["disabled"], changed["roles"]) == (True, ["viewer"])
    assert "password" in ask(node, "GET", f"users/{user}").json["login"]
    rule = {"who": [f"user:{user}"], "operations": ["read", "write"], "resource": "topic:t*"}
    ids = ask(node, "POST", "rules", rule).json["ids"]
    assert ask(node, "POST", "rules", rule).json["ids"] == ids and len(ids) == 2
    listed = ask(node, "GET", f"rules?who=user:{user}").data
    assert {each["id"] for each in listed} == set(ids)
    assert ask(node, "POST", "rules", {**rule, "who": ["ann"]}).status == 400
    asked = f"access/test?user={user}&operation=read&resource=topic:t1"
    deadline = time.monotonic() + 10
    # The node follows the rules that the MetaService keeps.
    while not (told := ask(node, "GET", asked).json)["reason"].startswith("rule "):
        assert time.monotonic() < deadline, told
        time.sleep(0.05)
    assert told["allowed"]
    for each in ids:
        assert ask(node, "DELETE", f"rules/{each}").json == {"name": each}
    assert ask(node, "DELETE", f"rules/{ids[0]}").json["code"] == "UNKNOWN_ENTRY"
    quota = f"quotas/user:{user}"
    assert ask(node, "PUT", quota, {}).status == 400
    assert ask(node, "PUT", quota, {"records_per_s": 5}).json["records_per_s"] == 5
    assert [each["who"] for each in ask(node, "GET", f"quotas?q={user}").data] == [f"user:{user}"]
    assert ask(node, "DELETE", quota).status == ask(node, "DELETE", f"users/{user}").status == 200
    assert ask(node, "GET", f"users/{user}").json["code"] == "UNKNOWN_ENTRY"


def test_a_change_of_what_somebody_changed_is_refused(node: NodeProcess) -> None:
    name, setting = unique("tagged"), "topics.segment_age_max_ms"
    ask(node, "POST", "topics", {"name": name})
    ask(node, "POST", "users", {"name": name, "password": "a long secret"})
    rule = {"who": [f"user:{name}"], "operations": ["read"], "resource": "topic:t", "id": name}
    (rule_id,) = ask(node, "POST", "rules", rule).json["ids"]
    resources: list[tuple[str, str, object, object]] = [
        (f"topics/{name}", "PATCH", {"config": {"retention_ms": 5000}}, {"partitions": 2}),
        (f"users/{name}", "PATCH", {"disabled": True}, {"roles": ["viewer"]}),
        (f"rules/{rule_id}", "", None, None),
        (f"quotas/user:{name}", "PUT", {"records_per_s": 5}, {"records_per_s": 6}),
        (f"dynamic-settings/cluster/{setting}", "PUT", {"value": 70_000}, {"value": 80_000}),
    ]
    for path, method, first, second in resources:
        if method == "PUT":
            assert ask(node, "PUT", path, first, {"If-Match": "*"}).status == 412
            assert ask(node, "PUT", path, first).status == 200
        old = {"If-Match": ask(node, "GET", path).headers["ETag"]}
        assert ask(node, "HEAD", path).headers["ETag"] == old["If-Match"]
        if method == "PATCH":
            changed = ask(node, method, path, first, old).headers["ETag"]
            assert ask(node, "GET", path, headers={"If-Match": changed}).status == 200
        if method:
            new = {"If-Match": ask(node, "GET", path).headers["ETag"]}
            assert ask(node, method, path, second, new).status == 200
            refused = ask(node, method, path, first, old)
            assert (refused.status, refused.json["code"]) == (412, "PRECONDITION_FAILED"), path
            assert ask(node, "DELETE", path, headers=new).status == 412
        now = {"If-Match": ask(node, "GET", path).headers["ETag"]}
        assert ask(node, "DELETE", path, headers=now).status == 200, path
        assert ask(node, "DELETE", path, headers=now).status == 404


def test_changes_are_in_the_audit_log(node: NodeProcess) -> None:
    name = unique("audited")
    time.sleep(1)  # Refusals of the tests before may have used up those that a second has room for.
    ask(node, "POST", "topics", {"name": name})
    ask(node, "PATCH", f"topics/{name}", {"config": {"retention_ms": 5000}})
    ask(node, "DELETE", f"topics/{name}")
    ask(node, "DELETE", f"topics/{name}")
    ask(node, "POST", "users", {"name": f"u{name}", "password": "geheim", "roles": []})
    ask(node, "DELETE", f"users/u{name}")
    rows = [each for each in ask(node, "GET", "audit?limit=500").data if name in str(each)]
    rows.reverse()
    assert [(each["action"], each["outcome"]) for each in rows] == [
        ("POST topics", "done"),
        ("PATCH topics/{topic}", "done"),
        ("DELETE topics/{topic}", "done"),
        ("DELETE topics/{topic}", "UNKNOWN_TOPIC"),
        ("POST users", "done"),
        ("DELETE users/{user}", "done"),
    ]
    assert rows[1]["before"]["config"] != rows[1]["after"]["config"] == {"retention_ms": 5000}
    assert {(each["who"], each["from_host"], each["by"]) for each in rows} == {
        ("anonymous", "127.0.0.1", "api")
    }
    assert "geheim" not in str(rows) and rows[4]["request"]["password"] == "***"
    at_ms = rows[2]["at_ms"]
    earlier = ask(node, "GET", f"audit?limit=500&until_ms={at_ms}&since_ms={rows[0]['at_ms']}").data
    assert all(rows[0]["at_ms"] <= each["at_ms"] < at_ms for each in earlier) and earlier


def test_schemas_transactions_and_schedules(node: NodeProcess) -> None:
    subject, topic = unique("readings"), unique("later")
    schema = {"schema_type": "json-schema", "text": '{"type": "object"}'}
    assert ask(node, "POST", f"schemas/{subject}/check", schema).json == {"problems": []}
    made = ask(node, "POST", f"schemas/{subject}", schema)
    assert (made.status, made.json["version"]) == (201, 1)
    ask(node, "POST", "topics", {"name": topic, "config": {"schema": subject}})
    (row,) = ask(node, "GET", f"schemas?q={subject}").data
    assert (row["used_by"], row["versions"][0]["version"]) == ([topic], 1)
    assert ask(node, "GET", f"schema-ids/{made.json['schema_id']}").json["subject"] == subject
    ask(node, "PUT", f"schemas/{subject}/compatibility", {"compatibility": "none"})
    assert ask(node, "GET", f"schemas?q={subject}").data[0]["compatibility"].lower() == "none"
    assert ask(node, "DELETE", f"schemas/{subject}?dry_run=true").json["versions"] == [1]
    with lakemq.connect(node.native) as client:
        client.schedules.send(
            topic, b'{"a": 1}', delay=timedelta(hours=1), schedule_id=f"id-{topic}"
        )
    (waiting,) = ask(node, "GET", f"schedules?topic={topic}").data
    assert (waiting["schedule_id"], waiting["records"]) == (f"id-{topic}", 1)
    assert ask(node, "DELETE", f"schedules/id-{topic}").json["records"] == 1
    assert ask(node, "GET", f"schedules?topic={topic}").data == []
    assert ask(node, "GET", "transactions").status == 200
    assert ask(node, "DELETE", "transactions/sink/none").json["code"] == "UNKNOWN_TRANSACTION"


def test_changes_by_the_native_protocol_are_audited(node: NodeProcess) -> None:
    name = unique("natively")
    with lakemq.connect(node.native) as client:
        client.create_topic(name)
        client.send(name, b"x")
        client.reset_offsets(f"g{name}", {lakemq.TopicPartition(name, 0): 1})
        client.delete_topic(name)
        with pytest.raises(lakemq.UnknownTopic):
            client.delete_topic(name)
    rows = [each for each in ask(node, "GET", "audit?limit=500").data if name in str(each)]
    assert [(each["action"], each["outcome"], each["by"]) for each in reversed(rows)] == [
        ("topic.create", "done", "native"),
        ("group.reset", "done", "native"),
        ("topic.delete", "done", "native"),
        ("topic.delete", "UNKNOWN_TOPIC", "native"),
    ]
    assert rows[-1]["request"]["name"] == rows[-1]["resource"] == name
    app = typer.Typer()
    app.command()(audit)
    shown = CliRunner().invoke(app, ["--match", name, "--admin", node.addresses["admin"]])
    assert shown.exit_code == 0 and shown.output.count(name) == 4, shown.output
    failed = CliRunner().invoke(
        app, ["--match", name, "--failed", "--json", "--admin", node.addresses["admin"]]
    )
    (refused,) = json.loads(failed.output)
    assert refused["outcome"] == "UNKNOWN_TOPIC"


def test_a_queue_and_its_dead_letters(node: NodeProcess) -> None:
    topic, dead, group = unique("work"), unique("dead"), unique("workers")
    ask(node, "POST", "topics", {"name": topic})
    path = f"queues/{group}/{topic}"
    assert ask(node, "GET", path).json["code"] == "UNKNOWN_GROUP"
    settings = {"attempts_max": 1, "dead_letter": dead}
    assert ask(node, "PATCH", path, settings).json["attempts_max"] == 1
    with lakemq.connect(node.native) as client:
        client.send(topic, b"good", key=b"k", headers=(("own", b"1"),))
        with client.queue(topic, group=group) as queue:
            (record,) = queue.next_batch(1)
            record.reject()
        deadline = time.monotonic() + 30
        while not ask(node, "GET", f"topics?q={dead}").data:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        while ask(node, "GET", f"topics/{dead}/offsets").json["offsets"] != {"0": 1}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    (row,) = ask(node, "GET", f"queues?q={group}").data
    assert (row["topic"], row["dead_letter_topic"], row["consumers"]) == (topic, dead, 0)
    for _ in range(2):
        tried = ask(node, "POST", f"{path}/redrive?dry_run=true").json
        assert (tried["published"], tried["offsets"], tried["next_offset"]) == (1, [0], 1)
    assert ask(node, "POST", f"{path}/redrive").json["published"] == 1
    assert ask(node, "POST", f"{path}/redrive?offset=1").json["published"] == 0
    records = ask(node, "GET", f"topics/{topic}/partitions/0/records").json["records"]
    assert [(each["key"], each["value"]) for each in records] == [("k", "good")] * 2
    assert records[0]["headers"] == records[1]["headers"]
    assert ask(node, "POST", f"{path}/reset?dry_run=true", {"to": "earliest"}).json["offsets"] == {
        "0": 0
    }
    assert ask(node, "POST", f"{path}/reset", {"to": "latest"}).json["offsets"] == {"0": 2}
    assert ask(node, "DELETE", path).status == 200
    assert ask(node, "GET", path).status == 404


def test_retained_messages_and_bridges(node: NodeProcess) -> None:
    name = f"{unique('kept')}/a b"
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=unique("publisher"))
    client.connect("127.0.0.1", node.mqtt_port)
    client.loop_start()
    client.publish(name, b"21.5", 1, retain=True).wait_for_publish(20)
    client.disconnect()
    client.loop_stop()
    path = f"mqtt/retained/{quote(name, safe='')}"
    deadline = time.monotonic() + 20
    while (found := ask(node, "GET", path)).status == 404 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (found.json["payload"], found.json["qos"], found.json["node"]) == ("21.5", 1, "node-1")
    listed = ask(node, "GET", f"mqtt/retained?filter={quote(name.replace('a b', '+'))}").data
    assert [(each["topic_name"], each["size_bytes"]) for each in listed] == [(name, 4)]
    assert ask(node, "DELETE", f"{path}?dry_run=true").status == 200
    assert ask(node, "DELETE", path).json["topic_name"] == name
    assert ask(node, "GET", path).json["code"] == "UNKNOWN_RETAINED"
    assert ask(node, "GET", "mqtt/retained?filter=a%23").status == 400
    # A node without a link tells those of the others.
    assert ask(node, "GET", "bridges").data == []


def test_exports_tell_how_far_they_are(node: NodeProcess) -> None:
    topic, export_id = unique("exported"), unique("export")
    group = f"export.{export_id}"
    told = ExportReport("s3://lake/t", "delta", 3, 1_000, 1, 4096, 500)
    with lakemq.connect(node.native) as client:
        client.create_topic(topic, partitions=2)
        for number in range(3):
            client.send(topic, b"x", partition=number % 2)
        first, second = (lakemq.TopicPartition(topic, number) for number in range(2))
        client.reset_offsets(group, {second: 1})
        assert ask(node, "GET", f"exports?q={export_id}").data == []
        client.reset_offsets(group, {first: 1}, metadata=told.to_text())
        (row,) = ask(node, "GET", f"exports?q={export_id}").data
        assert (row["table"], row["commit"], row["lag"]) == ("s3://lake/t", 3, 1)
        assert (row["rows_per_s"], row["topic"], row["node"]) == (2000.0, topic, "node-1")
        # The command tells the same by the native protocol.
        command = ["status", "--bootstrap", node.native, "--topic", topic]
        run = CliRunner().invoke(export_app, [*command, "--json"])
        (shown,) = json.loads(run.stdout)
        assert {name: row[name] for name in shown} == shown
        assert (shown["rows"], shown["lag"], shown["export_id"]) == (1_000, 1, export_id)
        text = CliRunner().invoke(export_app, command).stdout
        assert "s3://lake/t" in text and export_id in text
        other = [*command, "--export-id", unique("none"), "--json"]
        assert json.loads(CliRunner().invoke(export_app, other).stdout) == []
        client.reset_offsets(group, {first: 2}, metadata='{"table": 5}')
        assert ask(node, "GET", f"exports?q={export_id}").data == []
    # It is no change of an operator's.
    assert ask(node, "GET", f"audit?q={export_id}").data == []


def test_an_api_key_opens_until_it_is_revoked(node: NodeProcess) -> None:
    says = unique("backup")
    made = ask(node, "POST", "keys", {"says": says, "roles": ["viewer"], "expires_s": 3600})
    assert made.status == 201 and made.json["made_by"] == "anonymous"
    key_id = made.json["id"]
    bearer = {"Authorization": f"Bearer {made.json['key']}"}
    deadline = time.monotonic() + 20
    while (found := ask(node, "GET", "whoami", headers=bearer)).status == 401:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (found.json["name"], found.json["roles"]) == (f"key:{key_id}", ["viewer"])
    (row,) = ask(node, "GET", f"keys?q={says}").data
    assert row["last_used_ms"] >= row["made_ms"] and "key" not in row
    assert row["expires_ms"] - row["made_ms"] <= 3_600_000
    # It is no user that could log in, or that a list shows.
    assert ask(node, "GET", f"users?q={key_id}").data == []
    assert ask(node, "DELETE", "keys/none").json["code"] == "UNKNOWN_ENTRY"
    assert ask(node, "DELETE", f"keys/{key_id}?dry_run=true").status == 200
    with lakemq.connect(node.native, token=made.json["key"]) as client:
        client.topics()
        assert ask(node, "DELETE", f"keys/{key_id}").json["name"] == key_id
        with pytest.raises(lakemq.NotAuthenticated):
            while time.monotonic() < deadline:
                client.topics()
                time.sleep(0.05)
    while ask(node, "GET", "whoami", headers=bearer).status != 401:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert ask(node, "GET", f"keys?q={says}").data == []
    audited = ask(node, "GET", f"audit?q={key_id}").body
    assert key_id in audited and made.json["key"][18:] not in audited


def test_changes_at_the_metaservices_own_port_are_audited(node: NodeProcess) -> None:
    name = unique("bob")
    members = ["--address", node.addresses["meta"]]
    for arguments, given in (
        (["user", "add", name, "--role", "viewer", "--password-stdin"], "geheim\n"),
        (["acl", "add", "-w", f"user:{name}", "-o", "read", "-r", "topic:x"], ""),
        (["user", "delete", name], ""),
        (["node", "remove", name], ""),
    ):
        CliRunner().invoke(lakemq_app, [*arguments, *members], input=given)
    deadline = time.monotonic() + 20
    rows: list[dict[str, object]] = []
    while len(rows) < 4 and time.monotonic() < deadline:  # a refusal is noted when it was told
        rows = [each for each in ask(node, "GET", "audit?limit=500").data if name in str(each)]
    assert [(each["action"], each["resource"], each["outcome"]) for each in reversed(rows)] == [
        ("access.put", name, "done"),
        ("access.put", rows[-2]["resource"], "done"),
        ("access.delete", name, "done"),
        ("node.remove", name, "NOT_FOUND"),
    ]
    assert {(each["by"], each["who"], each["from_host"]) for each in rows} == {
        ("meta", "anonymous", "127.0.0.1")
    }
    assert "argon" not in str(rows) and "geheim" not in str(rows)
    # What a broker asks for is noted where its client asked, once.
    topic = unique("once")
    ask(node, "POST", "topics", {"name": topic})
    newest = ask(node, "GET", "audit?limit=500").data
    assert [each["by"] for each in newest if topic in str(each)] == ["api"]
