"""Goal: what the broker keeps for itself in topics is no client's to see or to change, whatever
protocol it comes by and whatever it may do with all other topics."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.types import Columns
from lakemq.cli.commands import app
from lakemq.plugins.native.proto import (
    admin_pb2,
    metadata_pb2,
    queues_pb2,
    schedules_pb2,
    transactions_pb2,
)
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.admin_pb2_grpc import AdminStub
from lakemq.plugins.native.proto.metadata_pb2_grpc import MetadataStub
from lakemq.plugins.native.proto.native_pb2_grpc import NativeStub
from lakemq.plugins.native.proto.queues_pb2_grpc import QueuesStub
from lakemq.plugins.native.proto.schedules_pb2_grpc import SchedulesStub
from lakemq.plugins.native.proto.transactions_pb2_grpc import TransactionsStub
from tests.integration.security.test_security_node import CONFIG, Device, basic
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.node.users import add_user

WAIT_S = 30
RULE = """
[[security.rules]]
who = ["user:all"]
operations = ["all"]
resources = ["any:*"]
[[security.rules]]
who = ["user:seer"]
operations = ["describe"]
resources = ["topic:seen-*"]
"""
BATCH = encode(Columns([b"forged"]), now_ms=1)
SESSIONS, RETAINED, OFFSETS = "__mqtt_sessions", "__mqtt_retained", "_lakemq_offsets"
THERE = (SESSIONS, RETAINED, "__mqtt_bans", OFFSETS, "_lakemq_staged")
"""Some of those that nodes have."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("internal")
    for name in ("root", "all", "stranger", "seer"):
        add_user(folder, name)
    config = CONFIG[: CONFIG.index('[[security.authenticators]]\nkind = "users"')] + RULE
    with NodeProcess(folder, PORTS_FREE + config.format(folder=folder)) as running:
        yield running
    assert "Traceback" not in running.log_file.read_text()


class Caller:
    """One account, over one channel."""

    def __init__(self, node: NodeProcess, user: str) -> None:
        self.metadata = (("authorization", basic(user, f"{user}'s password")),)
        self.channel = grpc.insecure_channel(node.native)
        self.native = NativeStub(self.channel)

    def unary(self, call: Any, request: Any) -> Any:
        return call(request, metadata=self.metadata, timeout=WAIT_S)

    def stream(self, call: Any, request: Any) -> Any:
        """The first answer of a call that may stream both ways."""
        return next(iter(call(request, metadata=self.metadata, timeout=WAIT_S)))

    def refused(self, answer: Callable[[], Any]) -> bool:
        """Whether the call, or the answer in it, says that it may not."""
        try:
            error = answer().error.code
        except grpc.RpcError as told:
            return bool(told.code() is grpc.StatusCode.PERMISSION_DENIED)  # type: ignore[attr-defined]
        return bool(error == "NOT_AUTHORIZED")


@pytest.fixture
def caller(node: NodeProcess) -> Iterator[Caller]:
    made = Caller(node, "all")
    with made.channel:
        yield made


def _produce(to: Caller, name: str) -> Any:
    request = pb.ProduceRequest(topic=name, batch=BATCH, acks=pb.ACKS_LEADER)
    return to.stream(to.native.Produce, iter([request]))


def _join(to: Caller, name: str) -> Any:
    beat = pb.GroupHeartbeat(
        group="g", member_id="m", sequence=1, intent=pb.INTENT_JOIN, topics=[name]
    )
    return to.stream(to.native.JoinGroup, iter([beat]))


def _commit(to: Caller, name: str) -> Any:
    commit = pb.OffsetCommit(topic=name, offset=0)
    return to.unary(to.native.CommitOffsets, pb.CommitOffsetsRequest(group="h", offsets=[commit]))


def _stage(to: Caller, name: str) -> Any:
    stub = TransactionsStub(to.channel)
    owner = transactions_pb2.Owner(kind=transactions_pb2.OWNER_KIND_SINK, name="s")
    epoch = to.unary(stub.OpenOwner, transactions_pb2.OpenOwnerRequest(owner=owner)).epoch
    request = transactions_pb2.StageRequest(owner=owner, epoch=epoch, topic=name, batch=BATCH)
    return to.stream(stub.Stage, iter([request]))


def _queue(to: Caller, topic: str, dead_letter: str = "") -> Any:
    settings = queues_pb2.QueueSettings(dead_letter=dead_letter)
    opened = queues_pb2.OpenQueue(group="q", topic=topic, settings=settings)
    request = queues_pb2.QueueRequest(open=opened)
    return to.stream(QueuesStub(to.channel).ConsumeQueue, iter([request]))


def _alter_queue(to: Caller, name: str) -> Any:
    request = queues_pb2.AlterQueueRequest(group="q", topic=name)
    return to.unary(QueuesStub(to.channel).AlterQueue, request)


DOORS: dict[str, Callable[[Caller, str], Any]] = {
    "describe": lambda to, name: to.unary(to.native.Describe, pb.DescribeRequest(topics=[name])),
    "create": lambda to, name: to.unary(to.native.CreateTopic, pb.CreateTopicRequest(name=name)),
    "produce": _produce,
    "fetch": lambda to, name: to.stream(to.native.Fetch, pb.FetchRequest(topic=name)),
    "fetch many": lambda to, name: to.stream(
        to.native.FetchMany,
        pb.FetchManyRequest(partitions=[pb.PartitionOffset(topic=name)]),
    ),
    "tiered": lambda to, name: to.unary(
        to.native.TieredSegments, pb.TieredSegmentsRequest(topic=name)
    ),
    "timestamps": lambda to, name: to.unary(
        to.native.OffsetsForTimestamp, pb.OffsetsForTimestampRequest(topic=name)
    ),
    "group": _join,
    "commit": _commit,
    "stage": _stage,
    "schedule": lambda to, name: to.unary(
        SchedulesStub(to.channel).Schedule,
        schedules_pb2.ScheduleRequest(topic=name, schedule_id="s", batch=BATCH, delay_ms=1),
    ),
    "queue": _queue,
    "dead letters": lambda to, name: _queue(to, "mqtt", name),
    "alter queue": _alter_queue,
    "alter": lambda to, name: to.unary(
        AdminStub(to.channel).AlterTopic,
        admin_pb2.AlterTopicRequest(name=name, config={"cleanup": "delete"}),
    ),
    "delete records": lambda to, name: to.unary(
        AdminStub(to.channel).DeleteRecords,
        admin_pb2.DeleteRecordsRequest(topic=name, before={0: -1}),
    ),
    "delete": lambda to, name: to.unary(to.native.DeleteTopic, pb.DeleteTopicRequest(name=name)),
}


@pytest.mark.parametrize("door", DOORS)
def test_native_refuses_who_may_do_everything_else(caller: Caller, door: str) -> None:
    """Whether it exists or not."""
    for name in (*THERE, "__nobody_made_this", "_lakemq_nor_this"):
        assert caller.refused(lambda name=name: DOORS[door](caller, name)), name  # type: ignore[misc]


@pytest.mark.parametrize("door", DOORS)
def test_who_has_no_right_does_not_learn_what_there_is(node: NodeProcess, door: str) -> None:
    stranger = Caller(node, "stranger")
    with stranger.channel:
        for name in ("mqtt", "nowhere"):
            assert stranger.refused(lambda name=name: DOORS[door](stranger, name)), name  # type: ignore[misc]


@pytest.mark.parametrize("door", ["create", "produce", "alter", "delete records", "delete"])
def test_an_operator_changes_none_either(node: NodeProcess, door: str) -> None:
    operator = Caller(node, "root")
    with operator.channel:
        for name in (*THERE, "__new"):
            assert operator.refused(lambda name=name: DOORS[door](operator, name)), name  # type: ignore[misc]


def names_of(node: NodeProcess, user: str) -> set[str]:
    who = Caller(node, user)
    with who.channel:
        found = who.unary(who.native.Describe, pb.DescribeRequest())
        names = {topic.name for topic in found.topics}
        request = metadata_pb2.WatchMetadataRequest()
        update = who.stream(MetadataStub(who.channel).WatchMetadata, request)
        assert {topic.name for topic in update.topics} == names
        return names


def test_lists_leave_them_out_but_an_operators(node: NodeProcess) -> None:
    assert names_of(node, "all") == {"mqtt"}
    assert {SESSIONS, RETAINED, "_lakemq_staged"} < names_of(node, "root")


def test_who_watches_is_told_of_no_topic_that_it_may_not_see(node: NodeProcess) -> None:
    """Not even that it is gone."""
    seer, root = Caller(node, "seer"), Caller(node, "root")
    with seer.channel, root.channel:
        updates = MetadataStub(seer.channel).WatchMetadata(
            metadata_pb2.WatchMetadataRequest(), metadata=seer.metadata, timeout=WAIT_S
        )
        seen = [next(iter(updates))]
        for name in ("hidden-1", "seen-1"):
            root.unary(root.native.CreateTopic, pb.CreateTopicRequest(name=name))
        while "seen-1" not in {topic.name for update in seen for topic in update.topics}:
            seen.append(next(iter(updates)))
        for name in ("hidden-1", "seen-1"):
            root.unary(root.native.DeleteTopic, pb.DeleteTopicRequest(name=name))
        while "seen-1" not in {name for update in seen for name in update.gone}:
            seen.append(next(iter(updates)))
        assert {topic.name for update in seen for topic in update.topics} == {"seen-1"}
        assert {name for update in seen for name in update.gone} == {"seen-1"}


def test_an_operator_reads_all_but_what_is_not_decided_yet(node: NodeProcess) -> None:
    login = {"username": "root", "password": "root's password"}
    with lakemq.connect(node.native, **login) as client:
        client.reset_offsets("by-hand", {lakemq.TopicPartition("mqtt", 0): 0})
        assert any(b"by-hand" in (each.key or b"") for each in client.consume(OFFSETS))
        client.schedules.send("mqtt", b"later", delay=timedelta(hours=1), partition=0)
        for hidden in ("_lakemq_staged", "_lakemq_delayed"):
            with pytest.raises(lakemq.NotAuthorized, match="it cannot be read"):
                list(client.consume(hidden))


def test_a_pattern_matches_none(node: NodeProcess) -> None:
    """Not even an operator's: it would read its own commits for ever."""
    login = {"username": "root", "password": "root's password"}
    with (
        lakemq.connect(node.native, **login) as client,
        client.subscribe(pattern=".*", group="readers-p") as consumer,
    ):
        client.send("mqtt", b"x")
        next(iter(consumer))
        assert {place.topic for place in consumer.assignment} == {"mqtt"}


def admin(node: NodeProcess, user: str, path: str) -> Any:
    request = urllib.request.Request(f"http://{node.addresses['admin']}/api/v1/{path}")
    secret = base64.b64encode(f"{user}:{user}'s password".encode()).decode()
    request.add_header("Authorization", f"Basic {secret}")
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code


def test_the_http_admin_shows_them_to_operators_alone(node: NodeProcess) -> None:
    assert [topic["name"] for topic in admin(node, "all", "topics?internal=true")["data"]] == [
        "mqtt"
    ]
    assert admin(node, "all", f"topics/{SESSIONS}") == 403
    assert admin(node, "root", f"topics/{SESSIONS}")["name"] == SESSIONS


def test_mqtt_replays_none(node: NodeProcess) -> None:
    with Device(node, "r", "all", "all's password") as device:
        assert device.next("connect") == 0
        device.client.publish("kept", b"", 1, retain=True)
        assert device.next("publish") == 0
        device.client.publish("late", b"x", 1)
        assert device.next("publish") == 0
        device.client.subscribe("$replay/earliest/#", 1)
        device.next("subscribe")
        seen = [device.next("message")]
        while seen[-1] != ("late", b"x"):
            seen.append(device.next("message"))
        assert {name for name, _ in seen} <= {"kept", "late"}


def test_no_binding_leads_to_one(tmp_path: Path) -> None:
    config = tmp_path / "lakemq.toml"
    for text in (
        '[[plugins.mqtt.bindings]]\nfilter = "x/#"\ntopic = "__mqtt_sessions"\n',
        '[[plugins.bridge.links]]\nname = "l"\nurl = "mqtt://h"\n'
        '[[plugins.bridge.links.rules]]\ndirection = "in"\nfilter = "#"\ntopic = "_lakemq_x"\n',
    ):
        config.write_text(text)
        outcome = CliRunner().invoke(app, ["config", "check", "--config", str(config)])
        assert outcome.exit_code != 0 and "would be internal" in outcome.output
