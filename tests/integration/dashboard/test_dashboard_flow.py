"""Goal: queues, dead letters, transactions, schedules, schemas, retained messages and the way of a
message are shown, and changed by those alone who may."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import paho.mqtt.client as paho

import lakemq
from lakemq.broker_core.api.schemas.types import framed
from tests.support.node.dashboard import Answer, Visitor
from tests.support.node.node import NodeProcess, unique


def shown_soon(look: Callable[[], Answer], text: str) -> Answer:
    """The page, once it says so."""
    deadline = time.monotonic() + 20
    while text not in (page := look()).text:
        assert time.monotonic() < deadline, page.text
        time.sleep(0.05)
    return page


def test_dead_letters_are_looked_at_and_published_again(
    root: Visitor, ann: Visitor, client: lakemq.SyncClient
) -> None:
    topic, dead, group = unique("work"), unique("dead"), unique("workers")
    client.create_topic(topic)
    client.admin.alter_queue(group, topic, attempts_max=1, dead_letter=dead)
    client.send(topic, b"spoilt", key=b"k")
    with client.queue(topic, group=group) as queue:
        (record,) = queue.next_batch(1)
        record.reject()
        path = f"/queues/{group}/{topic}?node=node-1"
        shown_soon(lambda: root.get(path), "Read partition 0")
        shown_soon(lambda: root.get(f"{path}&partition=0&offset=0"), "1 of 1 dead letters")
    assert f"{group} {topic} 0 0" in root.get(f"/queues?q={group}").text
    assert "spoilt" in root.get(f"/messages?topic={dead}").text
    form = {"node": "node-1", "partition": "0", "offset": "0"}

    page = ann.get(f"{path}&partition=0&offset=0")
    assert f"You need the right to alter group:{group}." in page.text
    assert "disabled>Preview a redrive" in page.body and "disabled>Delete queue" in page.body
    assert "disabled>Reset all partitions" in page.body
    assert "Refused:" in ann.after(f"/queue-redrive/{group}/{topic}", form).text

    root.get(path)
    page = root.after(f"/queue-redrive/{group}/{topic}", form)
    assert "1 of 1 dead letters were published again." in page.text
    assert root.get(f"/messages?topic={topic}").text.count("spoilt") == 2
    reset = {"node": "node-1", "to": "earliest"}
    assert "goes on elsewhere" in root.after(f"/queue-reset/{group}/{topic}", reset).text
    delete = f"/queue-delete/{group}/{topic}"
    assert "type the group" in root.after(delete, {"node": "node-1", "confirm": "x"}).text
    assert "is deleted." in root.after(delete, {"node": "node-1", "confirm": group}).text
    assert root.get(path).status == 404


def test_what_waits_is_given_up(root: Visitor, ann: Visitor, client: lakemq.SyncClient) -> None:
    topic, name = unique("later"), unique("writer")
    client.create_topic(topic)
    client.schedules.send(topic, b"x", delay=timedelta(hours=1), schedule_id=f"id-{topic}")
    with client.transactional_producer(name) as producer, producer.transaction() as transaction:
        transaction.send(topic, b"y")
    assert f"id-{topic}" in root.get(f"/schedules?q=id-{topic}").text
    assert name in root.get(f"/transactions?q={name}").text
    schedule = f"/schedules/id-{topic}?node=node-1"
    page = ann.get(schedule)
    assert f"You need the right to write topic:{topic}." in page.text
    assert "disabled>Cancel" in page.body
    owner = f"/transactions/transaction/{name}?node=node-1"
    page = ann.get(owner)
    assert f"You need the right to alter transaction:{name}." in page.text
    assert "disabled>Abort" in page.body and "disabled>Delete" in page.body
    node = {"node": "node-1"}
    assert "Refused:" in ann.after(f"/schedule-cancel/id-{topic}", node).text

    root.get(schedule)
    page = root.after(f"/schedule-cancel/id-{topic}", node)
    assert f"1 scheduled records of {topic} are cancelled." in page.text
    assert root.get(schedule).status == 404
    assert "disabled>Abort" not in root.get(owner).body
    assert f"{name} is aborted" in root.after(f"/transaction-abort/transaction/{name}", node).text
    root.get(owner)
    delete, form = f"/transaction-delete/transaction/{name}", {**node, "confirm": name}
    assert "is deleted." in root.after(delete, form).text
    assert root.get(owner).status == 404


def test_a_schema_is_registered_after_what_keeps_it_from_that_is_shown(
    root: Visitor, ann: Visitor
) -> None:
    subject = unique("reading")
    root.get("/schema-new")
    first = '{"type": "object", "properties": {"co": {"type": "number"}}}'
    form = {"subject": subject, "schema_type": "json-schema", "text": first}
    assert "It can be registered" in root.post("/schema-new", {**form, "action": "check"}).text
    page = root.after("/schema-new", {**form, "action": "register"})
    assert f"{subject} has version 1" in page.text and "compatibility backward" in page.text
    narrower = {**form, "text": first.replace("number", "integer"), "action": "register"}
    page = root.post("/schema-new", narrower)
    assert page.status == 200 and "It can't be registered" in page.text
    assert "integer" in page.text and "$.co" in page.text
    shown = root.get(f"/schema-new?subject={subject}")
    assert '"number"' in shown.text
    rule = {"compatibility": "none"}
    assert "must keep: none" in root.after(f"/schema-compatibility/{subject}", rule).text
    assert "has version 2" in root.after("/schema-new", narrower).text

    page = ann.get(f"/schemas/{subject}")
    assert "You need the right" in page.text or page.status == 403
    assert "is deleted." in root.after(f"/schema-delete/{subject}", {"confirm": subject}).text


def test_a_message_is_decoded_by_a_schema_that_the_reader_may_read(
    root: Visitor, client: lakemq.SyncClient
) -> None:
    topic, subject = unique("typed"), unique("typed")
    fields = '[{"name": "co", "type": "double"}]'
    text = f'{{"type": "record", "name": "R", "fields": {fields}}}'
    client.create_topic(topic)
    made = client.schemas.register(subject, "avro", text)
    client.send(topic, framed(made.schema_id, bytes(8)))
    page = root.get(f"/messages?topic={topic}")
    assert '"co": 0.0' in page.text and "Avro, 13 B" in page.text
    client.send(topic, framed(made.schema_id, b"?"))
    assert "not decoded as Avro" in root.get(f"/messages?topic={topic}").text


def test_an_api_key_is_shown_once(root: Visitor, ann: Visitor) -> None:
    says = unique("backup")
    root.get("/keys")
    page = root.post("/keys", {"says": says, "roles": "viewer", "days": "7"})
    key = page.body.partition("lmqk_")[2][:56]
    assert page.status == 200 and len(key) == 56 and "it is not shown again" in page.text
    page = root.get(f"/keys?q={says}")
    assert says in page.text and key[13:] not in page.body
    key_id = key[:12]
    page = ann.get("/keys")
    assert "disabled>Make API key" in page.body
    assert "You need the right to create the cluster." in page.text
    assert "disabled>Revoke" in ann.get(f"/keys/{key_id}").body
    assert "Refused:" in ann.after(f"/key-revoke/{key_id}", {}).text
    root.get(f"/keys/{key_id}")
    assert f"API key {key_id} is revoked." in root.after(f"/key-revoke/{key_id}", {}).text
    assert root.get(f"/keys/{key_id}").status == 404


def test_retained_messages_and_the_way_of_one(
    node: NodeProcess, root: Visitor, ann: Visitor, client: lakemq.SyncClient
) -> None:
    name = f"{unique('kept')}/a b"
    publisher = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=unique("publisher"))
    publisher.username_pw_set("root", "root's password")
    publisher.connect("127.0.0.1", node.mqtt_port)
    publisher.loop_start()
    publisher.publish(name, b"<21.5>", 1, retain=True).wait_for_publish(20)
    publisher.disconnect()
    publisher.loop_stop()
    listed = f"/retained?filter={name.replace('a b', '%2B')}"
    page = shown_soon(lambda: root.get(listed), name)
    assert "1 retained message;" in page.text
    one = f"/retained/{name.replace('/', '%2F').replace(' ', '%20')}"
    page = root.get(f"{one}?node=node-1")
    assert "<21.5>" in page.text and "<21.5>" not in page.body
    assert ann.get(f"{one}?node=node-1").status == 403
    page = root.get(f"/explain?topic_name={name.replace(' ', '%20')}")
    assert all(word in page.text for word in ("published", "authorized", "stored", "durable"))
    assert "offset 0" in page.text and "\u2713 ok" in page.text
    page = root.get("/explain?topic=mqtt&partition=0&offset=999999")
    assert "\u25b2 waiting" in page.text
    path = one.replace("/retained/", "/retained-delete/")
    assert "is no longer retained" in root.after(path, {"node": "node-1"}).text
    assert root.get(f"{one}?node=node-1").status == 404
