"""Protobuf <-> SDK values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.records.tiered import TieredSegment, TieredSegments
from lakemq.broker_core.api.types import Columns, Headers, TopicPartition
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.native_pb2_grpc import NativeStub
from lakemq.plugins.native.sdk.arguments import Config, config_given, count_given
from lakemq.plugins.native.sdk.producer.checking import check_columns, checked_record
from lakemq.plugins.native.sdk.tracing import current_headers, is_traced, with_headers
from lakemq.plugins.native.sdk.types import (
    GroupDescription,
    GroupMember,
    GroupOffset,
    NewRecord,
    PartitionOffsets,
    TopicOffsets,
)
from lakemq.plugins.native.wire.fetched import (
    parse_fetch_many_response,
    parse_fetch_response,
)
from lakemq.plugins.native.wire.filtering import RecordFilter

_READS: Final = ("Describe", "OffsetsForTimestamp", "DescribeGroups", "Fetch", "InitProducer")
"""Calls that may be made twice; of a stream, until its first answer."""
_SERVICE_CONFIG: Final = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{"service": "lakemq.native.v1.Native", "method": each} for each in _READS],
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "0.2s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)
"""https://github.com/grpc/proposal/blob/master/A6-client-retries.md: some 2.4 s in all."""

CHANNEL_OPTIONS: Final[list[tuple[str, int | str]]] = [
    ("grpc.service_config", _SERVICE_CONFIG),
    ("grpc.max_receive_message_length", 288 * 1024 * 1024),
    ("grpc.max_send_message_length", 288 * 1024 * 1024),
    # A dead peer is noticed within 30 s, also by a stream that only listens. The listener permits
    # pings every 5 s; gRPC would end a connection that pings more often than its peer permits.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.http2.max_frame_size", 1024 * 1024),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
]
"""Room for the largest record batch (256 MiB) and its envelope; a broker that is back is found
within a second, until then reads are tried again and other calls fail at once. Large frames, and a
window that is not measured all the time, take a quarter less CPU to receive."""

FETCH_MAX_BYTES: Final = 8 * 1024 * 1024


def native_stub(channel: Any) -> Any:
    """NativeStub or NativeAsyncStub, whose `Fetch` answers with `Fetched` and `FetchMany` with
    `FetchedPartition`, which have the fields of the messages."""
    stub: Any = NativeStub(channel)
    # In place of the generated ones, whose messages would copy every batch twice.
    stub.Fetch = channel.unary_stream(
        "/lakemq.native.v1.Native/Fetch",
        request_serializer=pb.FetchRequest.SerializeToString,
        response_deserializer=parse_fetch_response,
    )
    stub.FetchMany = channel.unary_stream(
        "/lakemq.native.v1.Native/FetchMany",
        request_serializer=pb.FetchManyRequest.SerializeToString,
        response_deserializer=parse_fetch_many_response,
    )
    return stub


def create_topic_request(
    name: str,
    partitions: int | None,
    config: Config | None,
    replication: int | None,
    min_in_sync: int | None,
) -> pb.CreateTopicRequest:
    """The request to create a topic. Raises InvalidRequest, naming the argument at fault."""
    return pb.CreateTopicRequest(
        name=name,
        partitions=count_given("partitions", partitions),
        config=config_given(config),
        replication=count_given("replication", replication),
        min_in_sync=count_given("min_in_sync", min_in_sync),
    )


def topic_offsets(topic: pb.Topic) -> TopicOffsets:
    """A topic, as `describe_topic` answers."""
    return TopicOffsets(
        topic.name,
        topic.topic_id,
        tuple(
            PartitionOffsets(
                each.partition, each.log_start_offset, each.high_watermark, each.size_bytes,
                each.state, each.log_end_offset, each.segments, each.detail,
                each.leader, each.leader_epoch, each.leader_address,
                tuple(each.replicas), tuple(each.in_sync), tuple(each.eligible),
                tuple(each.target), each.min_in_sync, dict(each.lags),
            )
            for each in topic.partitions
        ),
        dict(topic.config),
    )  # fmt: skip


def led_elsewhere(answer: pb.DescribeResponse) -> dict[str, list[str]]:
    """Address of other nodes -> topics of which they lead a partition."""
    found: dict[str, set[str]] = {}
    for topic in answer.topics:
        for each in topic.partitions:
            if each.leader not in ("", answer.node_id) and each.leader_address:
                found.setdefault(each.leader_address, set()).add(topic.name)
    return {address: sorted(names) for address, names in found.items()}


def merge_described(answer: pb.DescribeResponse, others: Sequence[pb.DescribeResponse]) -> None:
    """Take what leaders say of their partitions; where one did not answer, say so."""
    told = {
        (topic.name, each.partition): each
        for other in others
        for topic in other.topics
        for each in topic.partitions
        if each.leader == other.node_id
    }
    for topic in answer.topics:
        for each in topic.partitions:
            if each.leader in ("", answer.node_id):
                continue
            # Only the leader knows the high watermark and size; a node that once led would answer
            # with old ones.
            truth = told.get((topic.name, each.partition))
            if truth is not None:
                address = each.leader_address
                each.CopyFrom(truth)
                each.leader_address = address
            else:
                each.state, each.detail = "offline", f"no answer from {each.leader}, its leader"


def tiered_segments(answer: pb.TieredSegmentsResponse) -> TieredSegments:
    """The answer of `TieredSegments`, in the types of the SDK."""
    return TieredSegments(
        answer.log_start_offset, answer.high_watermark,
        tuple(
            TieredSegment(
                each.base_offset, each.next_offset, each.store_url, each.name, each.position,
                each.size_bytes, each.crc32c, each.gaps, each.read_position,
                each.read_end_position,
            )
            for each in answer.segments
        ),
        answer.more,
    )  # fmt: skip


def group_description(group: pb.Group) -> GroupDescription:
    """A consumer group, as `describe_group` answers."""
    return GroupDescription(
        group.name,
        group.state,
        group.epoch,
        tuple(
            GroupMember(
                each.member_id, each.instance_id, each.member_epoch, tuple(each.topics),
                tuple(TopicPartition(at.topic, at.partition) for at in each.partitions),
            )
            for each in group.members
        ),
        tuple(
            GroupOffset(
                each.topic, each.partition, each.committed_offset, each.log_start_offset,
                each.high_watermark, each.committed_ms, each.metadata,
            )
            for each in group.offsets
        ),
    )  # fmt: skip


def reset_request(
    group: str, offsets: Mapping[TopicPartition, int], metadata: str = ""
) -> pb.CommitOffsetsRequest:
    """Offsets of a group without members."""
    return pb.CommitOffsetsRequest(
        group=group,
        offsets=[
            pb.OffsetCommit(
                topic=at.topic, partition=at.partition, offset=offset, metadata=metadata
            )
            for at, offset in offsets.items()
        ],
    )


def filter_message(wanted: RecordFilter | None) -> pb.Filter | None:
    """The filter for the wire; None: all records."""
    if wanted is None:
        return None
    conditions = [
        pb.Condition(header=each.header, value=each.value, prefix=each.prefix)
        for each in wanted.conditions
    ]
    return pb.Filter(all=conditions)


def note_epoch(asked: pb.FetchRequest | pb.PartitionOffset, last_epoch: int) -> None:
    """Have the broker check that what was read before `asked.offset` is still there. -1: it has not
    told the leader epoch."""
    if last_epoch >= 0:
        asked.last_epoch = last_epoch
    else:
        asked.ClearField("last_epoch")


def columns_given(
    records: Columns | Sequence[NewRecord], now_ms: int, *, traced: bool = False
) -> Columns:
    """What a caller wants to send, as columns. InvalidRequest names what no record is made of.
    `traced`: add the current trace context, as where the program has a tracer provider."""
    if isinstance(records, Columns):
        check_columns(records)
        return records
    rows = [checked_record(record) for record in rows_given(records)]
    if (traced or is_traced()) and (added := current_headers()):
        rows = [with_headers(record, added) for record in rows]
    return columns_of(rows, now_ms)


def rows_given(records: object) -> Iterable[NewRecord]:
    """What a caller wants to send, row by row. Raises InvalidRequest."""
    if isinstance(records, str | bytes | Mapping) or not isinstance(records, Iterable):
        raise InvalidRequest(
            f"records is of type {type(records).__name__}; it takes a list of NewRecord, or Columns"
        )
    return records


def columns_of(records: Sequence[NewRecord], now_ms: int) -> Columns:
    """Rows -> columns; an unused column is left out."""
    if not records:
        return Columns([], timestamps_ms=[])
    values, keys, headers, times = zip(*records, strict=True)
    return joined_columns(values, keys, headers, times, now_ms)


def joined_columns(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None],
    headers: Sequence[Headers],
    times: Sequence[Any],
    now_ms: int,
) -> Columns:
    """Columns of records; an unused one is left out."""
    count = len(values)
    # `list.count` runs in C; a generator over every record would dominate a large batch.
    if not times.count(None):
        moments = list(times)
    elif times.count(None) == count:
        moments = [now_ms] * count
    else:
        moments = [now_ms if each is None else each for each in times]
    return Columns(
        values,
        None if keys.count(None) == count else keys,
        [encode_headers(each) for each in headers] if any(headers) else None,
        moments,
    )
