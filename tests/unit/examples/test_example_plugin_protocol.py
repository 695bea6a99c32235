"""The example plugin's pure parts: lines, access, the header it adds."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lakemq_line.access import LineAuthenticator, LineAuthorizer
from lakemq_line.origin import OriginHeader
from lakemq_line.protocol import LineDecoder, LineTooLong, Put, answer

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, UnknownTopic
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.records.headers import decode_headers, encode_headers
from lakemq.broker_core.api.types import (
    ANONYMOUS,
    NO_CONTEXT,
    Columns,
    Offset,
    Operation,
    Placed,
    Principal,
    Resource,
)

LINE_CLIENT = Principal("127.0.0.1:4000", "anonymous", {"protocol": "line"})


def decode(data: bytes, line_max_bytes: int = 100) -> list[Put | LakeMQError]:
    return LineDecoder(line_max_bytes).receive(data)


@pytest.mark.parametrize(
    ("line", "put"),
    [
        (b"PUT meters kitchen 21.5\n", Put("meters", b"kitchen", b"21.5")),
        (b"PUT meters kitchen 21.5\r\n", Put("meters", b"kitchen", b"21.5")),
        (b"PUT meters - a value with spaces \n", Put("meters", None, b"a value with spaces ")),
        (b"PUT meters k \n", Put("meters", b"k", b"")),
        (b"PUT m\xc3\xa9 k \x00\xff\n", Put("mé", b"k", b"\x00\xff")),
    ],
)
def test_a_line_is_a_record(line: bytes, put: Put) -> None:
    assert decode(line) == [put]


@pytest.mark.parametrize(
    "line", [b"\n", b"GET a\n", b"put a b c\n", b"PUT\n", b"PUT a\n", b"PUT a b\n", b"PUT  b c\n",
             b"PUT a  c\n", b"PUT \xff k v\n"]
)  # fmt: skip
def test_a_line_that_is_no_request_is_refused_and_the_next_is_not(line: bytes) -> None:
    refused, put = decode(line + b"PUT a b c\n")

    assert type(refused) is InvalidRequest
    assert put == Put("a", b"b", b"c")


@given(st.lists(st.binary(max_size=60), max_size=8), st.lists(st.integers(0, 500), max_size=8))
def test_where_the_network_cuts_makes_no_difference(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(b"PUT t k " + line.replace(b"\n", b"") + b"\n" for line in lines)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    decoder = LineDecoder(100)
    found = [
        request
        for start, end in zip(places, places[1:], strict=False)
        for request in decoder.receive(data[start:end])
    ]

    assert found == decode(data)
    assert len(found) == len(lines)


def test_the_longest_line_passes_and_one_byte_more_does_not() -> None:
    longest = b"PUT t k " + b"x" * 92
    assert decode(longest + b"\n") == [Put("t", b"k", b"x" * 92)]

    put, refused = decode(b"PUT t k v\n" + longest + b"x\nPUT t k lost\n")
    assert put == Put("t", b"k", b"v")
    assert type(refused) is LineTooLong


def test_a_line_without_end_is_refused_before_it_takes_memory() -> None:
    decoder = LineDecoder(100)
    assert decoder.receive(b"x" * 100) == []
    (refused,) = decoder.receive(b"x")
    assert type(refused) is LineTooLong
    assert decoder._rest == b""


def test_answers_are_one_line_whatever_they_say() -> None:
    assert answer(Placed(3, Offset(41))) == b"OK 3 41\n"
    assert answer(UnknownTopic("no\nsuch  topic")) == b"ERR UNKNOWN_TOPIC no such topic\n"
    assert len(answer(InvalidRequest("x" * 10_000))) < 300


def authenticate(protocol: str, host: str) -> Principal | None:
    return asyncio.run(LineAuthenticator().authenticate(Credentials(protocol, "c", host)))


def test_only_line_clients_of_this_machine_are_named() -> None:
    assert authenticate("line", "127.0.0.1") == Principal("c", "anonymous", {"protocol": "line"})
    assert authenticate("line", "::1") is not None
    assert authenticate("line", "192.0.2.7") is None
    assert authenticate("mqtt", "127.0.0.1") is None


@pytest.mark.parametrize(
    ("principal", "operation", "resource", "verdict"),
    [
        (LINE_CLIENT, Operation.WRITE, Resource("topic", "meters"), True),
        (LINE_CLIENT, Operation.WRITE, Resource("topic", "other"), False),
        (LINE_CLIENT, Operation.READ, Resource("topic", "meters"), False),
        (LINE_CLIENT, Operation.WRITE, Resource("group", "meters"), False),
        (ANONYMOUS, Operation.DELETE, Resource("topic", "other"), None),
    ],
)
def test_line_clients_write_their_topics_and_nothing_else(
    principal: Principal, operation: Operation, resource: Resource, verdict: bool | None
) -> None:
    assert (
        LineAuthorizer(["meters"]).authorize(principal, operation, resource, NO_CONTEXT) is verdict
    )


def test_without_a_list_line_clients_write_all_topics() -> None:
    verdict = LineAuthorizer([]).authorize(
        LINE_CLIENT, Operation.WRITE, Resource("topic", "x"), NO_CONTEXT
    )
    assert verdict is True


def test_records_of_line_clients_say_where_they_come_from() -> None:
    before = encode_headers((("unit", b"C"),))
    columns = Columns([b"a", b"b"], headers=[before, b""])
    after = OriginHeader().intercept("t", columns, LINE_CLIENT)

    assert after.values == columns.values
    assert after.headers is not None
    assert [decode_headers(each) for each in after.headers] == [
        (("unit", b"C"), ("line-client", b"127.0.0.1:4000")),
        (("line-client", b"127.0.0.1:4000"),),
    ]
    assert OriginHeader().intercept("t", columns, ANONYMOUS) is columns
