"""Goal: what callers give is taken where its meaning is plain, else refused in words of theirs."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from lakemq.broker_core.api.errors import BatchTooLarge, InvalidRequest
from lakemq.broker_core.api.records.batch import BODY_MAX_BYTES
from lakemq.broker_core.api.types import Acks, Columns, Compression
from lakemq.plugins.native.sdk.arguments import (
    acks_given,
    check_options,
    compression_given,
    config_given,
    count_given,
    delay_ms,
    moment_ms,
)
from lakemq.plugins.native.sdk.consumer.options import ConsumerOptions
from lakemq.plugins.native.sdk.net import tls
from lakemq.plugins.native.sdk.net.addresses import Bootstrap, bootstrap_of
from lakemq.plugins.native.sdk.producer.checking import encoded
from lakemq.plugins.native.sdk.queue.queue import QueueOptions, queue_settings


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("127.0.0.1", "127.0.0.1:9700"),
        ("broker-1.example", "broker-1.example:9700"),
        (" a:1 , b ", "a:1,b:9700"),
        (["a:1", "b:2"], "a:1,b:2"),
        ("[::1]:7", "[::1]:7"),
        ("[::1]", "[::1]:9700"),
        ("::1", "[::1]:9700"),
        ("fe80::1%eth0", "[fe80::1%eth0]:9700"),
        ("unix:/run/lakemq.sock", "unix:/run/lakemq.sock"),
        ("dns:///a:1", "dns:///a:1"),
    ],
)
def test_an_address_gets_the_default_port(given: str | list[str], taken: str) -> None:
    assert bootstrap_of(given) == taken


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("", "bootstrap is empty"),
        (" , ", "bootstrap is empty"),
        ("http://a:9700", "leave http:// out"),
        ("lakemq://a", "leave lakemq:// out"),
        ("a:abc", "its port is 'abc'"),
        ("a:", "its port is ''"),
        ("a:0", "its port is '0'"),
        ("a:70000", "its port is '70000'"),
        ("a:²", "its port is"),
        (":9700", "it takes host:port"),
        ("a/b:9700", "it takes host:port"),
        ("a b:9700", "it takes host:port"),
        ("[::1:9700", "it takes host:port"),
        (5, "it takes host:port, or a list"),
        (None, "it takes host:port, or a list"),
        ([b"a:1"], "it takes host:port, or a list"),
    ],
)
def test_what_is_no_address_is_refused(given: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match="bootstrap") as raised:
        bootstrap_of(given)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("number", "refused"), [(socket.EAI_NONAME, True), (socket.EAI_AGAIN, False)]
)
def test_a_host_that_there_is_not_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, number: int, refused: bool
) -> None:
    """A resolver without an answer may have one later."""

    def look_up(*_: object, **__: object) -> None:
        raise socket.gaierror(number, "resolver's words")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    if not refused:
        assert tls.target_of(Bootstrap("brokr")) == "brokr:9700"
        return
    with pytest.raises(InvalidRequest, match="'brokr:9700': no such host: resolver's words"):
        tls.target_of(Bootstrap("brokr"))
    assert tls.target_of("leader:9700") == "leader:9700"  # of another node, which may come back


def test_acks_and_compression_by_name() -> None:
    assert [acks_given(each) for each in ("all", "leader", 0, Acks.LEADER, "Replicated")] == [
        Acks.REPLICATED,
        Acks.LEADER,
        Acks.MEMORY,
        Acks.LEADER,
        Acks.REPLICATED,
    ]
    assert [compression_given(each) for each in ("lz4", "ZSTD", Compression.NONE)] == [
        Compression.LZ4,
        Compression.ZSTD,
        Compression.NONE,
    ]


def test_settings_of_a_topic_as_text() -> None:
    given = {"retention_ms": 5000, "schema": "s", "compact": True, "retention_bytes": None}
    assert config_given(given) == {
        "retention_ms": "5000", "schema": "s", "compact": "true", "retention_bytes": "none",
    }  # fmt: skip
    assert config_given(None) == {}


def test_moments_and_delays() -> None:
    assert moment_ms("t", datetime(2026, 1, 1, tzinfo=UTC)) == 1767225600000
    assert moment_ms("t", 5) == 5
    assert delay_ms(timedelta(seconds=1.5)) == 1500


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: acks_given("some"), "acks is 'some'; it takes an Acks or one of 'memory'"),
        (lambda: acks_given(7), "acks is 7"),
        (lambda: acks_given(True), "acks is True"),
        (lambda: compression_given("gzip"), "compression is 'gzip'"),
        (lambda: compression_given(2), "compression is 2"),
        (lambda: config_given({"retention_ms": 1.5}), "config retention_ms is of type float"),
        (lambda: config_given({5: "x"}), "config 5: a setting's name is text"),
        (lambda: config_given(["a"]), "config is of type list; it takes a dict"),
        (lambda: count_given("partitions", 0), "partitions is 0; it takes 1 or more"),
        (lambda: moment_ms("t", "2026"), "t is '2026'; it takes milliseconds"),
        (lambda: moment_ms("t", 1.5), "t is 1.5"),
        (lambda: moment_ms("t", 1 << 63), "it takes 64 bits"),
        (lambda: moment_ms("t", datetime(2026, 1, 1)), "t needs a time zone"),
        (lambda: delay_ms(5), "delay is 5; it takes a timedelta"),
        (lambda: delay_ms(timedelta(seconds=-1)), "it can't be negative"),
        (
            lambda: check_options("subscribe", ["auto_comit"], ConsumerOptions.__annotations__),
            "subscribe has no option 'auto_comit'; did you mean 'auto_commit'?",
        ),
        (
            lambda: check_options("subscribe", ["auto_offset_reset"], ["start", "wanted"]),
            "did you mean 'start'?",
        ),
        (lambda: check_options("queue", ["zzz"], ["start", "wanted"]), "there are start, wanted"),
        (lambda: queue_settings({"lockms": 3}), "queue has no option 'lockms'; .*'lock_ms'"),
        (lambda: queue_settings({"lock_ms": "x"}), "queue: lock_ms is 'x'; it takes a whole"),
        (lambda: queue_settings({"lock_ms": 1 << 90}), "queue: lock_ms is"),
        (lambda: queue_settings({"order": 5}), "queue: order is 5; it takes text"),
        (lambda: queue_settings({"prefetch": "x"}), "queue: prefetch is 'x'"),
    ],
)
def test_what_has_no_plain_meaning_is_refused_in_words(
    call: Callable[[], object], text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        call()


def test_options_are_those_of_the_protocol() -> None:
    prefetch, settings = queue_settings({"lock_ms": 5, "prefetch": 7, "order": "key"})
    assert (prefetch, settings.lock_ms, settings.order) == (7, 5, "key")
    assert {field.name for field in settings.DESCRIPTOR.fields} | {"prefetch"} >= set(
        QueueOptions.__annotations__
    )


def test_more_than_a_batch_holds_is_batch_too_large() -> None:
    part = bytes(16 * 1024 * 1024)
    with pytest.raises(BatchTooLarge, match=f"a batch takes {BODY_MAX_BYTES}"):
        encoded(Columns([part] * (BODY_MAX_BYTES // len(part) + 1)), now_ms=0)
