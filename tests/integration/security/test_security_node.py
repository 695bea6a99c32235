"""Goal: a real node lets in who it should, by each mechanism, and nobody may do more than its
rules say."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import jwt
import paho.mqtt.client as paho
import pytest
import typer
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

import lakemq
from lakemq.cli.commands import app
from lakemq.plugins.mqtt.wire import packets
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.topics import TopicNames
from lakemq.plugins.native.cli.commands import topic
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.native_pb2_grpc import NativeStub
from lakemq.plugins.native.proto.security_pb2 import WhoAmIRequest
from lakemq.plugins.native.proto.security_pb2_grpc import SecurityStub
from lakemq.plugins.native.sdk.net.scram_client import ScramClient
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.node.users import add_user

WAIT_S = 30
ISSUER = ed25519.Ed25519PrivateKey.generate()
EXP = 4_000_000_000

CONFIG = """
[security]
anonymous = "never"
admins = ["user:root"]
failures_max = 3
lockout_ms = 60000

[[security.authenticators]]
kind = "password_file"
file = "{folder}/users"

[[security.authenticators]]
kind = "users"

[[security.authenticators]]
kind = "jwt"
key_file = "{folder}/issuer.pem"
issuer = "acme"

[[security.rules]]
who = ["role:device"]
operations = ["publish"]
resources = ["topic_name:devices/%c/#"]
qos = [0, 1]

[[security.rules]]
who = ["user:reader", "role:device"]
operations = ["subscribe"]
resources = ["topic_name:devices/#", "topic_name:commands/%u"]

[[security.rules]]
who = ["user:reader"]
operations = ["read"]
resources = ["topic:mqtt", "group:readers-*"]
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("security")
    for name, roles in (("root", ()), ("reader", ()), ("sensor", ("device",)), ("victim", ())):
        add_user(folder, name, *roles)
    pem = ISSUER.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "issuer.pem").write_bytes(pem)
    config = PORTS_FREE + CONFIG.format(folder=folder) + '[node]\nlog_level = "debug"\n'
    with NodeProcess(folder, config, arguments=("--log-format", "json")) as running:
        yield running
    log = running.log_file.read_text()
    # All that it says, also what libraries say: one JSON object a line.
    assert {json.loads(line)["node"] for line in log.splitlines()} == {"node-1"}
    for secret in ("'s password", "eyJ", "$argon2"):
        assert secret not in log
    assert "Traceback" not in log


class Device:
    """A paho client that notes what it is told."""

    def __init__(
        self,
        node: NodeProcess,
        client_id: str,
        user: str | None = None,
        password: str | None = None,
        *,
        version: int = paho.MQTTv5,
    ) -> None:
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, protocol=version)
        self.answers: list[tuple[str, Any]] = []
        self.changed = threading.Condition()
        self.client.username_pw_set(user, password)
        self.client.on_connect = lambda c, u, f, reason, p: self._note("connect", reason.value)
        self.client.on_publish = lambda c, u, mid, reason, p: self._note("publish", reason.value)
        self.client.on_subscribe = lambda c, u, mid, codes, p: self._note(
            "subscribe", [code.value for code in codes]
        )
        self.client.on_disconnect = lambda c, u, f, reason, p: self._note("end", reason.value)
        self.client.on_message = lambda c, u, message: self._note(
            "message", (message.topic, message.payload)
        )
        self.client.connect("127.0.0.1", node.mqtt_port)
        self.client.loop_start()

    def _note(self, kind: str, value: Any) -> None:
        with self.changed:
            self.answers.append((kind, value))
            self.changed.notify_all()

    def next(self, kind: str) -> Any:
        """The next answer of that kind."""
        with self.changed:
            found = self.changed.wait_for(
                lambda: [value for name, value in self.answers if name == kind], WAIT_S
            )
            assert found, f"no {kind}; there are {self.answers}"
            self.answers.remove((kind, found[0]))
            return found[0]

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def token(user: str = "sensor", **claims: Any) -> str:
    body = {"sub": user, "iss": "acme", "exp": EXP, "roles": ["device"], **claims}
    return jwt.encode(body, ISSUER, "EdDSA")


def test_passwords_over_mqtt(node: NodeProcess) -> None:
    with Device(node, "s1", "sensor", "sensor's password") as device:
        assert device.next("connect") == 0
    for user, password in (("sensor", "wrong"), ("nobody", "x"), (None, None)):
        with Device(node, "s1", user, password) as device:
            assert device.next("connect") == 0x86
    with Device(node, "s1", "sensor", "wrong", version=paho.MQTTv311) as device:
        assert device.next("connect") in (0x86, 4)


def test_tokens_over_mqtt(node: NodeProcess) -> None:
    with Device(node, "t1", "ignored", token()) as device:
        assert device.next("connect") == 0
    with Device(node, "t1", "ignored", token(exp=1)) as device:
        assert device.next("connect") == 0x86


def test_a_device_publishes_where_it_may(node: NodeProcess) -> None:
    """The default binding stores it in topic mqtt, to which the device itself has no right."""
    with (
        Device(node, "r1", "reader", "reader's password") as reader,
        Device(node, "s2", "sensor", "sensor's password") as device,
    ):
        assert reader.next("connect") == 0 and device.next("connect") == 0
        reader.client.subscribe("devices/#", 1)
        assert reader.next("subscribe") == [1]
        device.client.publish("devices/s2/t", b"21.5", 1)
        assert device.next("publish") == 0
        assert reader.next("message") == ("devices/s2/t", b"21.5")
        device.client.publish("devices/other/t", b"x", 1)
        assert device.next("publish") == 0x87
        device.client.publish("devices/s2/t", b"x", 2)  # QoS 2 is not among its rights
        assert device.next("publish") >= 0x80  # paho tells of the packet after PUBREC's 0x87
        device.client.publish("devices/s2/t", b"22", 1)
        assert device.next("publish") == 0


def test_a_filter_wider_than_the_rights_is_refused(node: NodeProcess) -> None:
    with Device(node, "r2", "reader", "reader's password") as reader:
        assert reader.next("connect") == 0
        for wanted, code in (
            ("#", 0x87), ("devices/+/t", 0), ("commands/reader", 0), ("commands/root", 0x87),
            ("$share/g/devices/#", 0), ("$share/g/#", 0x87),
        ):  # fmt: skip
            reader.client.subscribe(wanted, 0)
            assert reader.next("subscribe") == [code], wanted


def test_3_1_1_ends_the_connection_of_who_publishes_where_it_may_not(node: NodeProcess) -> None:
    with Device(node, "s3", "sensor", "sensor's password", version=paho.MQTTv311) as device:
        assert device.next("connect") == 0
        device.client.publish("devices/other/t", b"x", 1)
        assert device.next("end") != 0


def test_a_token_brings_its_own_rules(node: NodeProcess) -> None:
    mine = [{"operations": ["publish"], "resources": ["topic_name:x/%u"]}]
    with Device(node, "t2", "", token("eve", lakemq_rules=mine, roles=[])) as device:
        assert device.next("connect") == 0
        device.client.publish("x/eve", b"1", 1)
        assert device.next("publish") == 0
        device.client.publish("x/ann", b"1", 1)
        assert device.next("publish") == 0x87


def test_guessing_is_stopped(node: NodeProcess) -> None:
    """Three failures, then even the right password has to wait. The address is everybody's here, so
    the victim is a user that no other test needs."""
    for _ in range(3):
        with Device(node, "g", "victim", "guess") as device:
            assert device.next("connect") == 0x86
    with Device(node, "g", "victim", "victim's password") as device:
        assert device.next("connect") == 0x86


def call(node: NodeProcess, header: str | None, names: list[str] | None = None) -> Any:
    metadata = (("authorization", header),) if header else ()
    with grpc.insecure_channel(node.native) as channel:
        request = pb.DescribeRequest(topics=names or [])
        return NativeStub(channel).Describe(request, metadata=metadata, timeout=WAIT_S)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_native_takes_basic_and_bearer(node: NodeProcess) -> None:
    answer = call(node, basic("root", "root's password"))
    assert "mqtt" in [topic.name for topic in answer.topics]
    answer = call(node, basic("reader", "reader's password"))
    assert [topic.name for topic in answer.topics] == ["mqtt"]
    assert not call(node, f"Bearer {token()}").topics, "what one may not see is left out"


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, grpc.StatusCode.UNAUTHENTICATED),
        (basic("root", "wrong"), grpc.StatusCode.UNAUTHENTICATED),
        ("Bearer nonsense", grpc.StatusCode.UNAUTHENTICATED),
        ("Basic !!!", grpc.StatusCode.UNAUTHENTICATED),
        ("Digest x", grpc.StatusCode.UNAUTHENTICATED),
        (basic("sensor", "sensor's password"), grpc.StatusCode.PERMISSION_DENIED),
    ],
)
def test_native_refuses(node: NodeProcess, header: str | None, code: grpc.StatusCode) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(node, header, ["mqtt"])
    assert caught.value.code() is code  # type: ignore[attr-defined]


# -- what the MetaService keeps


def command(node: NodeProcess, *arguments: str, input: str = "", fails: bool = False) -> str:
    where = ["--address", node.addresses["meta"]]
    outcome = CliRunner().invoke(app, [*arguments, *where], input=input)
    assert (outcome.exit_code != 0) is fails, outcome.output
    return outcome.output


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def logs_in(node: NodeProcess, user: str, password: str) -> bool:
    with Device(node, f"probe-{user}", user, password) as device:
        return bool(device.next("connect") == 0)


def test_a_transactional_id_has_rules(node: NodeProcess) -> None:
    login = {"username": "reader", "password": "reader's password"}
    with lakemq.connect(node.native, **login) as client:
        for kind in ("transaction", "transactional_id"):  # the latter is its older name
            with pytest.raises(lakemq.NotAuthorized, match="write transaction"):
                client.transactional_producer(f"pay-{kind}")
            resource = f"{kind}:pay-{kind}"
            command(node, "acl", "add", "-w", "user:reader", "-o", "write", "-r", resource)
            eventually(lambda kind=kind: opens(client, f"pay-{kind}"))  # type: ignore[misc]


def opens(client: lakemq.SyncClient, transactional_id: str) -> bool:
    try:
        client.transactional_producer(transactional_id)
    except lakemq.NotAuthorized:
        return False
    return True


def test_users_and_rules_of_the_metaservice(node: NodeProcess) -> None:
    command(node, "user", "add", "kept", "--role", "plant", "--password-stdin", input="one\n")
    eventually(lambda: logs_in(node, "kept", "one"))
    assert not logs_in(node, "kept", "two")
    assert "plant" in command(node, "user", "list")

    with Device(node, "k1", "kept", "one") as device:
        assert device.next("connect") == 0

        def publish() -> int:
            device.client.publish("plant/1", b"x", 1)
            return int(device.next("publish"))

        assert publish() == 0x87
        rule = ("-w", "role:plant", "-o", "publish", "-r", "topic_name:plant/+")
        told = command(node, "acl", "add", *rule, "--id", "plants")
        assert "rules that allow have no effect" in told, "no configuration was given"
        arguments = ("-w", "role:plant", "-o", "all", "-r", "topci:x")
        assert "did you mean 'topic'" in command(node, "acl", "add", *arguments, fails=True)
        eventually(lambda: publish() == 0)  # the live connection asks anew
        assert "plants" in command(node, "acl", "list")
        asked = ("-o", "publish", "-r", "topic_name:plant/1", "--role", "plant", "--user", "x")
        assert "allowed: rule plants" in command(node, "acl", "test", *asked)
        command(node, "acl", "add", *rule, "--deny", "--id", "no-plants")
        eventually(lambda: publish() == 0x87)
        told = command(node, "acl", "test", *asked, fails=True)
        assert "denied: rule no-plants" in told
        command(node, "acl", "delete", "no-plants")
        eventually(lambda: publish() == 0)

    command(node, "user", "passwd", "kept", "--password-stdin", input="two\n")
    eventually(lambda: logs_in(node, "kept", "two"))
    with Device(node, "k2", "kept", "two") as device:
        assert device.next("connect") == 0
        device.client.publish("plant/1", b"x", 1)
        assert device.next("publish") == 0
        command(node, "user", "delete", "kept")
        eventually(lambda: not logs_in(node, "kept", "two"))
        assert device.next("end") == 0x87, "it is put out though it asks for nothing"


def fetches(node: NodeProcess, user: str) -> Any:
    """A stream of topic `mqtt` that waits for more."""
    channel = grpc.insecure_channel(node.native)
    metadata = (("authorization", basic(user, f"{user}'s password")),)
    request = pb.FetchRequest(topic="mqtt", follow=True)
    return NativeStub(channel).Fetch(request, metadata=metadata, timeout=WAIT_S), channel


def fill(node: NodeProcess) -> None:
    """A record, so that readers are answered."""
    with lakemq.connect(node.native, username="root", password="root's password") as client:
        client.send("mqtt", b"x")


@pytest.mark.parametrize("change", ["passwd", "delete"])
def test_what_a_password_of_the_file_opened_ends_with_it(node: NodeProcess, change: str) -> None:
    name = f"filed-{change}"
    add_user(node.folder, name)
    command(node, "acl", "add", "-w", f"user:{name}", "-o", "read", "-r", "topic:mqtt")
    with Device(node, name, name, f"{name}'s password") as device:
        assert device.next("connect") == 0
        fill(node)
        eventually(lambda: reads(node, name))
        stream, channel = fetches(node, name)
        next(iter(stream))
        arguments = ["user", change, name, "--file", str(node.folder / "users")]
        arguments += ["--password-stdin"] if change == "passwd" else []
        assert CliRunner().invoke(app, arguments, input="another\n").exit_code == 0
        assert device.next("end") == 0x87
        with pytest.raises(grpc.RpcError) as caught, channel:
            for _ in iter(stream):  # the next answers find out
                fill(node)
            fill(node)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]


def reads(node: NodeProcess, user: str) -> bool:
    try:
        call(node, basic(user, f"{user}'s password"), ["mqtt"])
    except grpc.RpcError:
        return False
    return True


def test_wrong_rules_are_refused_by_the_command(node: NodeProcess) -> None:
    wrong = ("acl", "add", "-w", "ann", "-o", "publish", "-r", "topic_name:a")
    assert "who 'ann'" in command(node, *wrong, fails=True)
    assert "does not exist" in command(node, "acl", "delete", "nothing", fails=True)


# -- the SDK


@pytest.mark.parametrize(
    "login",
    [
        {"username": "root", "password": "root's password"},
        {"username": "root", "password": "root's password", "mechanism": "SCRAM-SHA-256"},
        {"username": "root", "password": "root's password", "mechanism": "SCRAM-SHA-512"},
        {"token": token("root")},
    ],
    ids=["plain", "scram-sha-256", "scram-sha-512", "token"],
)
async def test_the_sdk_logs_in(node: NodeProcess, login: dict[str, Any]) -> None:
    name = f"sdk-{hash(frozenset(login.items())) & 0xFFFF}"
    with lakemq.connect(node.native, **login) as client:
        client.create_topic(name)
        client.send(name, b"1")
        assert [record.value for record in client.consume(name)] == [b"1"]
        with client.subscribe(name, group=f"group-{name}") as consumer:
            assert next(iter(consumer)).value == b"1"
    async with lakemq.Client(node.native, **login) as asking:
        async with await asking.producer() as producer:
            assert (await producer.send(name, b"2")).offset == 1
        assert [record.value async for record in asking.consume(name)] == [b"1", b"2"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_the_sdk_says_clearly_that_it_was_not_let_in(
    node: NodeProcess, mechanism: Any
) -> None:
    wrong = {"username": f"nobody-{mechanism}", "password": "guess", "mechanism": mechanism}
    with (
        lakemq.connect(node.native, **wrong) as client,
        pytest.raises(lakemq.NotAuthenticated, match="wrong user or password"),
    ):
        client.topics()
    with pytest.raises(lakemq.NotAuthenticated, match="wrong user or password"):
        async with lakemq.Client(node.native, **wrong) as asking:
            await asking.topics()


def test_the_sdk_tells_not_allowed_from_not_known(node: NodeProcess) -> None:
    shown = {"username": "reader", "password": "reader's password"}
    with lakemq.connect(node.native, **shown) as client:
        with pytest.raises(lakemq.NotAuthorized, match="reader may not create topic x"):
            client.create_topic("x")
        assert client.tiered_segments("mqtt", 0, 0, 1).segments == ()
        with pytest.raises(lakemq.NotAuthorized, match="reader may not read topic other"):
            client.tiered_segments("other", 0, 0, 1)
        with pytest.raises(lakemq.NotAuthorized, match="reader may not write topic mqtt"):
            client.send("mqtt", b"x")
    with (
        lakemq.connect(node.native) as client,
        pytest.raises(lakemq.NotAuthenticated, match="anonymous clients are not accepted"),
    ):
        client.topics()


def test_no_secret_travels_in_plain_text() -> None:
    for login in ({"token": "t"}, {"username": "u", "password": "p"}):
        with pytest.raises(lakemq.InvalidRequest, match="in plain text"):
            lakemq.connect("192.0.2.1:9700", **login)  # type: ignore[arg-type]
    lakemq.connect("192.0.2.1:9700", username="u", password="p", mechanism="SCRAM-SHA-256").close()
    with pytest.raises(lakemq.InvalidRequest, match="come together"):
        lakemq.connect(username="u")


# -- quotas


def test_who_uses_more_than_its_quota_has_to_wait(node: NodeProcess) -> None:
    """100 kB/s: what is beyond the first second's worth takes its time, and none of it is lost."""
    add_user(node.folder, "greedy", "plant")
    limits = ("--bytes-in-per-s", "100000", "--bytes-out-per-s", "100000")
    command(node, "quota", "set", "user:greedy", *limits)
    try:
        assert "100,000" in command(node, "quota", "list")
        shown = {"username": "greedy", "password": "greedy's password"}
        eventually(lambda: logs_in(node, "greedy", "greedy's password"))
        command(node, "acl", "add", "-w", "user:greedy", "-o", "all", "-r", "topic:greed")
        with lakemq.connect(node.native, token=token("root")) as root:
            root.create_topic("greed")
        with lakemq.connect(node.native, **shown) as client:
            eventually(lambda: client.describe_topic("greed").name == "greed")
            values = [b"x" * 50_000] * 5
            took_s = -time.monotonic()
            for value in values:
                client.send("greed", value)
            written_s, took_s = took_s + time.monotonic(), -time.monotonic()
            assert [record.value for record in client.consume("greed")] == values
            read_s = took_s + time.monotonic()
        # 250 kB less a second's worth ahead, less the last, which is taken before it is waited for
        assert written_s > 0.9 and read_s > 0.9, (written_s, read_s)
    finally:
        command(node, "quota", "delete", "user:greedy")
    waits = [line for line in admin_metrics(node) if "security_quota_waits" in line]
    assert float(waits[-1].rsplit(" ", 1)[1]) > 1


def admin_metrics(node: NodeProcess) -> list[str]:
    return asked(node, "/metrics", f"Bearer {token('root')}")[1].splitlines()


# -- the HTTP admin


def asked(node: NodeProcess, path: str, header: str | None = None) -> tuple[int, str]:
    headers = {"Authorization": header} if header else {}
    request = urllib.request.Request(f"http://{node.addresses['admin']}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_http_admin_asks_who_one_is(node: NodeProcess) -> None:
    reader = basic("reader", "reader's password")
    assert asked(node, "/healthz")[0] == asked(node, "/readyz")[0] == 200
    for path in ("/metrics", "/api/v1/node", "/api/v1/plugins", "/api/v1/topics/mqtt", "/other"):
        assert asked(node, path)[0] == 401, path
        assert asked(node, path, f"Bearer {token('root')}")[0] in (200, 404)
    for path in ("/metrics", "/api/v1/node", "/api/v1/plugins"):
        assert asked(node, path, reader)[0] == 403, path
    assert asked(node, "/api/v1/topics/mqtt", reader)[0] == 200
    assert asked(node, "/api/v1/topics/other", reader)[0] == 403
    seen = json.loads(asked(node, "/api/v1/topics", reader)[1])
    assert [topic["name"] for topic in seen["data"]] == ["mqtt"]
    assert asked(node, "/metrics", f"Bearer {token('root')}")[0] == 200


def test_commands_log_in_by_variables(node: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = ["topic", "list", "--bootstrap", node.native]
    outcome = CliRunner().invoke(native_app(), listing)
    assert outcome.exit_code == 5 and "anonymous clients are not accepted" in outcome.output
    monkeypatch.setenv("LAKEMQ_TOKEN", token("root"))
    assert "mqtt" in CliRunner().invoke(native_app(), listing).output


def native_app() -> typer.Typer:
    made = typer.Typer()
    made.add_typer(topic, name="topic")
    return made


# -- SCRAM over MQTT 5


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_scram_over_mqtt(node: NodeProcess, mechanism: str) -> None:
    """CONNECT, AUTH, AUTH, CONNACK, by our codec and the SDK's side of SCRAM."""
    for password, reason in (("sensor's password", 0), ("wrong", 0x86)):
        reader, writer = await asyncio.open_connection("127.0.0.1", node.mqtt_port)
        client = ScramClient(mechanism, "sensor", password, "a-nonce-of-the-client")
        said = packets.Properties(
            authentication_method=mechanism, authentication_data=client.first()
        )
        writer.write(encode(packets.Connect(f"s-{mechanism}", 5, properties=said), 5))
        decoder = Decoder(65_536, TopicNames(), 5)
        (challenge,) = await next_packets(reader, decoder)
        assert isinstance(challenge, packets.Auth) and challenge.reason == 0x18
        proof = client.final(challenge.properties.authentication_data or b"")
        said = packets.Properties(authentication_method=mechanism, authentication_data=proof)
        writer.write(encode(packets.Auth(0x18, said), 5))
        (connack,) = await next_packets(reader, decoder)
        assert isinstance(connack, packets.Connack) and connack.code == reason
        if not reason:
            client.check(connack.properties.authentication_data or b"")
        writer.close()
        await writer.wait_closed()


async def next_packets(reader: asyncio.StreamReader, decoder: Decoder) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(WAIT_S):
        while not found:
            found = decoder.feed(await reader.read(65_536))
    return found


# -- tokens of the node


def test_a_scram_token_is_its_users_and_nobody_elses(node: NodeProcess) -> None:
    login = {"username": "sensor", "password": "sensor's password", "mechanism": "SCRAM-SHA-256"}
    with lakemq.connect(node.native, **login) as client:  # type: ignore[arg-type]
        client.topics()
        login_of_channel = client._opened.client.connection.channel.login  # type: ignore[union-attr]
        ((_, header),) = login_of_channel.metadata
    with grpc.insecure_channel(node.native) as channel:
        ask = SecurityStub(channel).WhoAmI

        def who(text: str) -> Any:
            return ask(WhoAmIRequest(), metadata=(("authorization", text),), timeout=WAIT_S)

        told = who(header)
        assert (told.name, told.kind, list(told.roles)) == ("sensor", "user", ["device"])
        assert 0 < told.expires_ms / 1000 - time.time() < 3601
        body, _, mac = header.rpartition(".")
        for wrong in (f"{body}.{mac[::-1]}", f"{body[:-2]}xx.{mac}", "Bearer lakemq1.x.y"):
            with pytest.raises(grpc.RpcError) as caught:
                who(wrong)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
