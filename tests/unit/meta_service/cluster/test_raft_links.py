"""Goal: members take each other and nobody else, nothing is kept without bound for anyone, and a
connection that is lost is made again."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakemq.meta_service.api.errors import StartupFailed
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.raft.thread_queue import ThreadQueue
from lakemq.meta_service.raft.transport import Identity, SocketWire
from lakemq.meta_service.raft.wire import connection, listener
from lakemq.meta_service.raft.wire.frames import FrameReader, Hello, encode_hello, frame
from lakemq.meta_service.raft.wire.sockets import Pem
from lakemq.meta_service.raft.wire_format import MESSAGE_MAX_BYTES, BadMessage
from lakemq.meta_service.server.member import MetaMember
from tests.support.meta.group import Certificates
from tests.support.node.ports import free_ports

WAIT_S = 20


def vote(term: int) -> dict[str, Any]:
    return {"type": "vote_reply", "term": term, "granted": True, "pre": False}


class Member:
    """A wire with a thread that polls, as the Raft thread does, and notes what it hears."""

    def __init__(
        self, name: str, peers: dict[str, str], pem: Pem | None = None, cluster: str = "c1"
    ) -> None:
        self.queue = ThreadQueue()
        identity = Identity(name, lambda: f"{name}:9701", lambda: cluster, 3)
        self.wire = SocketWire(identity, peers, self.queue, pem)
        self.heard: list[tuple[str, Any]] = []
        self.wire.on_message = lambda peer, message: self.heard.append((peer, message["term"]))
        for event in ("connected", "disconnected", "refused"):
            setattr(self.wire, f"on_{event}", lambda peer, event=event: self.note(peer, event))
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def note(self, peer: str, event: str) -> None:
        self.heard.append((peer, event))

    def start(self, port: int) -> None:
        self.wire.bind("127.0.0.1", port)
        self.wire.start()
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            self.queue.poll(0.02)
        self.wire.close()

    def send(self, peer: str, term: int) -> None:
        self.queue.post(lambda: self.wire.send(peer, vote(term)))

    def wait(self, *wanted: tuple[str, Any]) -> None:
        until(lambda: all(each in self.heard for each in wanted))

    def stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive()
            self.queue.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Place:
    """Members with addresses, which end with the test."""

    def __init__(self, certificates: Certificates | None) -> None:
        self.certificates = certificates
        self.addresses = {
            name: f"127.0.0.1:{port}"
            for name, port in zip(("n1", "n2", "n3"), free_ports(3), strict=True)
        }
        self.members: list[Member] = []

    def pem(self, name: str) -> Pem | None:
        if self.certificates is None:
            return None
        files = self.certificates.sign(name)
        texts = [Path(files[key]).read_bytes() for key in ("tls_cert", "tls_key", "tls_ca")]
        return Pem(texts[0], texts[1], texts[2], files["tls_cert"], files["tls_key"])

    def start(self, name: str, *peers: str, shown: str = "", **settings: Any) -> Member:
        """`shown`: another name in its certificate."""
        others = {peer: self.addresses[peer] for peer in peers}
        member = Member(name, others, self.pem(shown or name), **settings)
        member.start(int(self.addresses[name].rpartition(":")[2]))
        self.members.append(member)
        return member

    def connect(self, name: str, source: str = "127.0.0.1") -> socket.socket:
        """A caller of no name, without TLS so far."""
        host, _, port = self.addresses[name].rpartition(":")
        return socket.create_connection((host, int(port)), WAIT_S, (source, 0))

    def close(self) -> None:
        for member in self.members:
            member.stop()


@pytest.fixture(params=["tls", "plain"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with contextlib.closing(
        Place(Certificates(tmp_path / "tls") if request.param == "tls" else None)
    ) as made:
        yield made


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Place]:
    with contextlib.closing(Place(Certificates(tmp_path / "tls"))) as made:
        yield made


@pytest.fixture
def plain() -> Iterator[Place]:
    with contextlib.closing(Place(None)) as made:
        yield made


def reasons(member: Member) -> str:
    return member.wire.why_unreachable()


def test_members_hear_each_other_and_what_each_says_of_itself(place: Place) -> None:
    one, two = place.start("n1", "n2"), place.start("n2", "n1")
    one.wait(("n2", "connected"))
    two.wait(("n1", "connected"))
    for term in range(300):
        one.send("n2", term)
        two.send("n1", term)
    one.wait(("n2", 299))
    two.wait(("n1", 299))
    assert [term for _, term in two.heard if term != "connected"] == list(range(300))
    assert (one.wire.api_address("n2"), one.wire.feature_level("n2")) == ("n2:9701", 3)
    assert two.wire.bytes_in == one.wire.bytes_out > 0


def test_a_lost_connection_is_made_again_and_a_dead_process_is_told(place: Place) -> None:
    one, two = place.start("n1", "n2"), place.start("n2", "n1")
    one.wait(("n2", "connected"))
    two.stop()
    one.wait(("n2", "disconnected"), ("n2", "refused"))
    one.heard.clear()
    two = place.start("n2", "n1")
    one.wait(("n2", "connected"))
    two.wait(("n1", "connected"))
    two.send("n1", 7)
    one.wait(("n2", 7))


def test_who_is_no_member_is_refused_and_hears_why(place: Place) -> None:
    one, two = place.start("n1", "n2", "n3"), place.start("n2")
    until(lambda: one.wire.unknown_to == {"n2"})
    assert "n2: 'n1' is not a member" in reasons(one)
    assert ("n2", "connected") not in one.heard and not two.heard


def test_who_was_removed_is_not_heard_any_more(place: Place) -> None:
    one, two = place.start("n1", "n2"), place.start("n2", "n1")
    one.wait(("n2", "connected"))
    two.queue.post(lambda: two.wire.set_peers({}))
    two.wait(("n1", "disconnected"))
    one.send("n2", 5)
    until(lambda: one.wire.unknown_to == {"n2"})
    assert ("n1", 5) not in two.heard


def test_a_member_of_another_cluster_is_refused(place: Place) -> None:
    one, _ = place.start("n1", "n2"), place.start("n2", "n1", cluster="c2")
    until(lambda: "n2: 'n1' belongs to cluster c1, this member to c2" in reasons(one))


def test_a_caller_is_who_its_certificate_names(secure: Place) -> None:
    false, two = secure.start("n1", "n2", shown="n3"), secure.start("n2", "n1")
    until(lambda: "n2: the certificate does not name 'n1'" in reasons(false))
    until(lambda: "n1: the certificate does not name 'n1'" in reasons(two))
    assert not false.heard and not two.heard


def test_certificates_of_another_authority_and_none_are_refused(
    secure: Place, tmp_path: Path
) -> None:
    two = secure.start("n2", "n1")
    ours, secure.certificates = secure.certificates, Certificates(tmp_path / "others")
    foreign = secure.start("n1", "n2")
    until(lambda: "certificate verify failed" in reasons(foreign))
    assert ours is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the default is stricter from 3.13 on
    context.load_verify_locations(str(ours.folder / "ca.pem"))
    context.check_hostname = False
    with contextlib.suppress(OSError), context.wrap_socket(secure.connect("n2")) as caller:
        caller.sendall(encode_hello(Hello("n1", "", "", 1)))
        assert caller.recv(1) == b""
    shown = ours.sign("n1")
    context.load_cert_chain(shown["tls_cert"], shown["tls_key"])
    with context.wrap_socket(secure.connect("n2")):
        pass
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError), context.wrap_socket(secure.connect("n2")):
        pass
    assert not two.heard


@pytest.mark.parametrize(
    "said",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        (4097).to_bytes(4, "big"),
        frame(b"\xc1"),
        frame(b"\x90"),
        frame(b"\x80"),
        encode_hello(Hello("n1", "", "", 0)),
        encode_hello(Hello("n1", "", "", 1)) + frame(b"x"),
    ],
)
def test_what_is_no_hello_ends_the_connection(plain: Place, said: bytes) -> None:
    two = plain.start("n2", "n1")
    with plain.connect("n2") as caller:
        caller.sendall(said)
        assert b"member" not in caller.recv(100)
        assert caller.recv(1) == b""
    assert not two.heard


def test_callers_that_say_nothing_keep_no_member_out(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "CALLERS_MAX", 8)
    monkeypatch.setattr(listener, "CALLER_S", 1000.0)
    two = place.start("n2", "n1")
    silent = [place.connect("n2") for _ in range(12)]
    for each in silent[:4]:  # those before the last eight
        assert each.recv(1) == b""
    place.start("n1", "n2").wait(("n2", "connected"))
    two.wait(("n1", "connected"))
    for each in silent:
        each.close()


def test_callers_of_one_host_push_out_none_of_another(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HOST_CALLERS_MAX", 4)
    monkeypatch.setattr(listener, "CALLER_S", 1000.0)
    place.start("n2", "n1")
    other = place.connect("n2", source="127.0.0.2")
    flood = [place.connect("n2") for _ in range(12)]
    for each in flood[:8]:
        assert each.recv(1) == b""
        each.close()
    for each in (other, *flood[8:]):
        each.settimeout(0.2)
        with pytest.raises(TimeoutError):
            each.recv(1)
        each.close()


def test_a_caller_that_says_nothing_is_dropped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "CALLER_S", 0.1)
    place.start("n2", "n1")
    with place.connect("n2") as silent:
        assert silent.recv(1) == b""


def test_a_link_to_a_silent_process_stops_at_once(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place.addresses["n2"] = f"127.0.0.1:{silent.getsockname()[1]}"
        one = place.start("n1", "n2")
        accepted, _ = silent.accept()
        began = time.monotonic()
        one.stop()
        assert time.monotonic() - began < 3
        accepted.close()


# ------------------------------------------------------------ connections and frames


class Pair:
    """A connection, and the socket at its other end."""

    def __init__(self, frames: list[bytes], lost: list[str]) -> None:
        self.queue = ThreadQueue()
        ours, self.other = socket.socketpair()
        self.connection = connection.Connection(ours, self.queue, frames.append, lost.append)

    def close(self) -> None:
        self.connection.close()
        self.other.close()
        self.queue.close()


def test_what_a_slow_member_does_not_take_is_dropped_and_counted(
    plain: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNSENT_MAX_BYTES", 1_000_000)
    one, two = plain.start("n1", "n2"), plain.start("n2", "n1")
    one.wait(("n2", "connected"))
    two.queue.post(lambda: time.sleep(1.0))
    chunk = {"type": "snapshot", "term": 1, "index": 1, "index_term": 1, "size": 1, "position": 0}

    def flood() -> None:
        for _ in range(300):
            one.wire.send("n2", {**chunk, "data": bytes(100_000)})
        assert 0 < one.wire.dropped < 300

    one.queue.post(flood)
    until(lambda: sum(term == 1 for _, term in two.heard) == 300 - one.wire.dropped > 10)
    one.send("n2", 2)
    two.wait(("n1", 2))


def test_large_messages_arrive_whole_and_in_order(place: Place) -> None:
    """More than the buffers of the sockets hold, so that both ends meet what is half done."""
    one, two = place.start("n1", "n2"), place.start("n2", "n1")
    one.wait(("n2", "connected"))
    sizes = [random.Random(seed).randint(0, 2_000_000) for seed in range(30)]
    heard: list[bytes] = []
    two.wire.on_message = lambda peer, message: heard.append(message["data"])
    chunk = {"type": "snapshot", "term": 1, "index": 1, "index_term": 1, "size": 1, "position": 0}
    sent = [random.Random(size).randbytes(size) for size in sizes]

    def flood() -> None:
        for data in sent:
            one.wire.send("n2", {**chunk, "data": data})

    one.queue.post(flood)
    until(lambda: len(heard) == len(sent))
    assert heard == sent


def test_a_frame_that_is_too_long_ends_the_connection_before_it_comes() -> None:
    frames: list[bytes] = []
    lost: list[str] = []
    pair = Pair(frames, lost)
    pair.other.sendall(frame(b"first") + (MESSAGE_MAX_BYTES + 1).to_bytes(4, "big"))
    pair.queue.poll(1.0)
    assert len(lost) == 1 and "a frame of" in lost[0]
    assert pair.other.recv(1) == b""
    pair.close()


def test_a_failed_send_is_told_once_and_later() -> None:
    lost: list[str] = []
    pair = Pair([], lost)
    pair.other.close()
    assert not pair.connection.send(b"x") and not pair.connection.send(b"y")
    assert not lost, "who sends is in the middle of something"
    pair.queue.poll(1.0)
    pair.queue.poll(0.0)
    assert len(lost) == 1
    pair.close()


def test_frames_come_out_as_they_went_in_however_they_are_cut() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        sent = [rng.randbytes(rng.choice((0, 1, 4, 50))) for _ in range(20)]
        stream, found = b"".join(map(frame, sent)), list[bytes]()
        reader = FrameReader(50)
        while stream:
            count = rng.randint(1, 30)
            found += reader.take(stream[:count])
            stream = stream[count:]
        assert found == sent and reader.is_between_frames
    with pytest.raises(BadMessage):
        FrameReader(50).take((51).to_bytes(4, "big"))


async def test_whoever_connects_first_is_told_where_clients_reach_the_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    start = SocketWire.start

    def start_late(wire: SocketWire) -> None:
        said.append(wire.hello().api_address)
        start(wire)

    monkeypatch.setattr(SocketWire, "start", start_late)
    one, two = free_ports(2)
    members = {"n1": f"127.0.0.1:{one}", "n2": f"127.0.0.1:{two}"}
    settings = MetaSettings(port=0, raft_port=one, members=members, start_max_s=0.1)
    member = MetaMember(settings, node_id="n1", host="127.0.0.1", data_dir=tmp_path)
    with pytest.raises(StartupFailed):  # the other one never comes
        await member.start()
    assert len(said) == 1 and said[0].startswith("127.0.0.1:")
