"""Goal: every broker error crosses the wire as itself, and topic settings are checked by name."""

import grpc
import pytest

from lakemq.broker_core.api import errors
from lakemq.broker_core.api.errors import BY_CODE, InvalidRequest, LakeMQError
from lakemq.broker_core.api.types import Leadership, PartitionStatus, TopicConfig, TopicInfo
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.arguments import count_given
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.errors import Unimplemented, error_from, error_of
from lakemq.plugins.native.server.convert import (
    error_message,
    status_of,
    topic_config,
    topic_message,
    trailers_of,
)


class Failed(grpc.RpcError, grpc.Call):  # type: ignore[misc]  # as grpc's own failures are
    def __init__(self, status: grpc.StatusCode, details: str, trailers: tuple = ()) -> None:  # type: ignore[type-arg]
        self._answer = (status, details, trailers)

    def code(self) -> grpc.StatusCode:
        return self._answer[0]

    def details(self) -> str:
        return self._answer[1]

    def trailing_metadata(self) -> tuple:  # type: ignore[type-arg]
        return self._answer[2]

    def initial_metadata(self) -> tuple:  # type: ignore[type-arg]
        return ()

    def add_callback(self, callback: object) -> bool:
        return False

    def cancel(self) -> bool:
        return False

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> None:
        return None


@pytest.mark.parametrize("kind", BY_CODE.values(), ids=BY_CODE.keys())
def test_errors_come_back_as_what_they_were(kind: type[LakeMQError]) -> None:
    error = kind("words")
    back = error_from(Failed(status_of(error), str(error), trailers_of(error)), "b")
    assert (type(back), str(back)) == (kind, "words")
    in_place = error_of(error_message(error))
    assert (type(in_place), str(in_place)) == (kind, "words")
    assert in_place.retriable == kind.retriable


def test_status_codes_follow_the_tree() -> None:
    assert status_of(errors.CorruptBatch("x")) is grpc.StatusCode.INVALID_ARGUMENT
    assert status_of(errors.UnknownTopic("x")) is grpc.StatusCode.NOT_FOUND
    assert status_of(LakeMQError("x")) is grpc.StatusCode.INTERNAL


def test_no_broker_is_unavailable_and_anything_else_is_told() -> None:
    gone = error_from(Failed(grpc.StatusCode.UNAVAILABLE, "refused"), "h:1")
    assert isinstance(gone, errors.Unavailable) and "h:1" in str(gone)
    broken = Failed(grpc.StatusCode.INTERNAL, "Internal error from Core")
    assert error_from(broken, "h:1").retriable  # its stream was over when it was written to
    odd = error_from(Failed(grpc.StatusCode.UNIMPLEMENTED, "what"), "h:1")
    assert type(odd) is Unimplemented and "UNIMPLEMENTED" in str(odd)
    odd = error_from(Failed(grpc.StatusCode.INTERNAL, "what"), "h:1")
    assert type(odd) is LakeMQError and "INTERNAL" in str(odd)


def test_an_unknown_code_is_still_an_error() -> None:
    assert type(error_of(pb.Error(code="OF_THE_FUTURE", message="m"))) is LakeMQError


def test_topic_config_from_texts() -> None:
    base = TopicConfig()
    got = topic_config({"retention_ms": "none", "segment_max_bytes": "5000"}, base)
    assert (got.retention_ms, got.segment_max_bytes) == (None, 5000)
    assert topic_config({"cleanup": "compact"}, base).cleanup == "compact"


@pytest.mark.parametrize("name", ["retention_ms", "retention_bytes", "timestamp_ahead_max_ms"])
@pytest.mark.parametrize("text", ["none", "-1"])
def test_without_limit_has_two_spellings(name: str, text: str) -> None:
    assert getattr(topic_config({name: text}, TopicConfig()), name) is None


def test_no_partitions_are_not_the_default_number_of_them() -> None:
    assert (count_given("partitions", None), count_given("partitions", 3)) == (0, 3)
    for wrong in (0, -1):
        with pytest.raises(InvalidRequest, match=f"partitions is {wrong}; it takes 1 or more"):
            count_given("partitions", wrong)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [("retention", "1", "'retention' is unknown; known: .*retention_ms"),
     ("segment_max_bytes", "none", "segment_max_bytes is 'none'; it takes a whole number"),
     ("segment_max_bytes", "-5", "segment_max_bytes"),
     ("retention_ms", "soon", "a whole number, or none .-1.: without limit"),
     ("retention_ms", "-2", "retention_ms"), ("segment_max_bytes", "-1", "segment_max_bytes")],
)  # fmt: skip
def test_wrong_topic_config_is_named(name: str, text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        topic_config({name: text}, TopicConfig())


def test_replicas_cross_the_wire() -> None:
    leadership = Leadership("n1", 7, ("n1", "n2", "n3"), ("n1", "n2"), 9, ("n3",), 2, ("n1", "n4"))
    info = TopicInfo("t", "ab" * 16, 1, TopicConfig(), 4, (leadership,))
    status = PartitionStatus(0, "online", 0, 0, 0, 0, 1, lags={"n2": 0, "n3": 5})
    (got,) = wire.topic_offsets(topic_message(info, [status])).partitions
    assert (got.leader, got.leader_epoch, got.replicas) == ("n1", 7, ("n1", "n2", "n3"))
    assert (got.in_sync, got.eligible, got.target) == (("n1", "n2"), ("n3",), ("n1", "n4"))
    assert (got.min_in_sync, got.lags) == (2, {"n2": 0, "n3": 5})


def test_topics_cross_the_wire() -> None:
    info = TopicInfo("t", "ab" * 16, 1, TopicConfig(retention_ms=None), 4)
    status = PartitionStatus(0, "fenced", 1, 5, 7, 900, 2, "fsync failed")
    got = wire.topic_offsets(topic_message(info, [status]))
    assert (got.name, got.topic_id, got.config["retention_ms"]) == ("t", "ab" * 16, "none")
    (partition,) = got.partitions
    assert (partition.state, partition.detail, partition.size_bytes) == (
        "fenced",
        "fsync failed",
        900,
    )
    assert (partition.log_start_offset, partition.high_watermark, partition.log_end_offset) == (
        1,
        5,
        7,
    )
