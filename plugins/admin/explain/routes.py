"""`/api/v1/explain/...`: asks the other routes, on all nodes, for what they know of a message.

It asks as its caller: who may not read the topic, or may not describe the cluster, learns no more
here than there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.routes import (
    AdminRequest,
    AdminRoute,
    AnyRoute,
    NoQuery,
    expect,
)
from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, OffsetOutOfRange
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.plugins.admin.explain import stations
from lakemq.plugins.admin.explain.models import (
    Explained,
    ExplainedPublishes,
    PublishesQuery,
    Station,
)
from lakemq.plugins.admin.explain.stations import Json

_PAGE: Final = 500
_RECORDS_MAX: Final = 10_000
"""Looked at for one request."""
_GROUPS_MAX: Final = 50


class ExplainRoutes:
    """The two questions: where is this record, and where are this client's publishes."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        record = "explain/records/{topic}/{partition}/{offset}"
        return [
            AdminRoute("GET", record, self.record, Explained, NoQuery),
            AdminRoute("GET", "explain/publishes", self.publishes, ExplainedPublishes,
                       PublishesQuery),
        ]  # fmt: skip

    async def record(self, request: AdminRequest) -> Explained:
        """Tell the way of a record: publisher, rule, binding, replicas, deliveries, groups."""
        topic, offset = request.path["topic"], request.path["offset"]
        if not (offset.isascii() and offset.isdecimal() and len(offset) <= 18):
            raise InvalidRequest(f"offset {offset[:20]!r} is no number")
        partition = request.path["partition"]
        return await self._explain(request, topic, partition, int(offset))

    async def publishes(self, request: AdminRequest) -> ExplainedPublishes:
        """Find what became of publishes to a topic name since some time, refused ones too."""
        asked = expect(request.asked, PublishesQuery)
        if set(asked.topic_name) & set("+#\0"):
            raise InvalidRequest("topic_name takes a topic name, not a filter")
        notes: list[str] = []
        query = {"client_id": asked.client, "topic_name": asked.topic_name,
                 "since_ms": str(asked.since_ms)}  # fmt: skip
        if asked.until_ms is not None:
            query["until_ms"] = str(asked.until_ms)
        mqtt = await self._mqtt(request, query, notes)
        search = _Search(asked)
        binding = next((each["binding"] for each in mqtt if each["binding"] is not None), None)
        if binding is not None:
            await self._search(request, search, binding, notes)
        found = [
            await self._explain(request, topic, str(partition), offset)
            for topic, partition, offset in search.places
        ]
        found += _without_record(asked, mqtt)
        if not found:
            notes.append(
                "no such publish is stored, and none was refused or dropped as far as known"
            )
            found.append(_as_it_would_be(asked, mqtt))
        return ExplainedPublishes(
            found=found, looked_at=search.looked_at, complete=search.complete,
            next_since_ms=search.next_since_ms, notes=notes,
        )  # fmt: skip

    # -- one record

    async def _explain(
        self, request: AdminRequest, topic: str, partition: str, offset: int
    ) -> Explained:
        path = f"topics/{quote(topic, safe='')}/partitions/{quote(partition, safe='')}"
        held = await request.ask(path, {})
        number = int(held["partition"])
        log = await self._log(request, topic, number)
        try:
            got = await request.ask(
                f"{path}/records", {"offset": str(offset), "limit": "1", "value_max_bytes": "0"}
            )
            records = [each for each in got["records"] if each["offset"] == offset]
            start, mark = got["log_start_offset"], got["high_watermark"]
        except OffsetOutOfRange:
            records = []
            start = log["log_start_offset"] if log is not None else 0
            mark = log["high_watermark"] if log is not None else 0
        if not records:
            return Explained(
                topic=topic, partition=number, offset=offset,
                stations=[stations.not_stored(topic, number, offset, start, mark, held)],
            )  # fmt: skip
        record = records[0]
        name = stations.topic_name_of(record)
        headers = stations.headers_of(record)
        client_id = headers.get(stations.CLIENT, "")
        mqtt = await self._mqtt(
            request,
            {
                "client_id": client_id, "topic_name": name, "topic": topic,
                "partition": str(number), "offset": str(offset),
                "at_ms": str(record["timestamp_ms"]),
                "qos": headers.get("mqtt.qos", "1"),
                "retain": "true" if headers.get("mqtt.retain") == "1" else "false",
            },
            [],
        )  # fmt: skip
        way = [stations.published(record)]
        if client_id:
            way.append(stations.authorized(client_id, mqtt, stored=True))
            way += [each for each in [stations.bound(name, mqtt, topic)] if each is not None]
        way.append(stations.stored(topic, number, record, held))
        way.append(stations.durable(offset, held, log))
        if any(each["binding"] is not None for each in mqtt):
            way += stations.deliveries(record["timestamp_ms"], mqtt)
        way += await self._groups(request, topic, number, offset)
        return Explained(
            topic=topic, partition=number, offset=offset, client_id=client_id, topic_name=name,
            stations=way,
        )  # fmt: skip

    async def _log(self, request: AdminRequest, topic: str, partition: int) -> Json | None:
        """The leader's log and its replicas' lags; None: it does not answer."""
        found = await request.ask(
            f"topics/{quote(topic, safe='')}/partitions",
            {"q": f"{topic}/{partition:010d}", "limit": "10"},
        )
        return next((each for each in found["data"] if each["partition"] == partition), None)

    async def _mqtt(
        self, request: AdminRequest, query: Mapping[str, str], notes: list[str]
    ) -> list[Json]:
        """What each node's MQTT side knows; none where the plugin is off."""
        broker = self._node.broker
        nodes = (
            {each.node_id for each in broker.nodes() if each.state != "fenced"} if broker else ()
        )
        answers = await asyncio.gather(
            *(
                request.ask("mqtt/explain", {**query, "node": each})
                for each in sorted({self._node.node_id, *nodes})
            ),
            return_exceptions=True,
        )
        found: list[Json] = []
        for answer in answers:
            if isinstance(answer, LakeMQError):
                notes.append(f"a node's MQTT side does not tell: {answer}")
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
        return found

    async def _groups(
        self, request: AdminRequest, topic: str, partition: int, offset: int
    ) -> list[Station]:
        way: list[Station] = []
        try:
            listed: Any = await request.ask("groups", {"limit": str(_PAGE)})
        except LakeMQError:  # the native protocol is off
            return way
        reading = [each for each in listed["data"] if topic in each["topics"]]
        for row in reading[:_GROUPS_MAX]:
            try:
                path = f"groups/{quote(row['name'], safe='')}"
                found = await request.ask(path, {"node": row["node"]})
            except LakeMQError:  # deleted meanwhile
                continue
            way += [
                stations.group(row["name"], row["node"], each, offset)
                for each in found["offsets"]
                if (each["topic"], each["partition"]) == (topic, partition)
            ]
        return way

    # -- publishes

    async def _search(
        self, request: AdminRequest, search: _Search, binding: Json, notes: list[str]
    ) -> None:
        """Look through the partition where the publishes lie."""
        topic, by_client = str(binding["topic"]), binding["key"] == "client_id"
        path = f"topics/{quote(topic, safe='')}"
        at = f"time:{search.asked.since_ms}" if search.asked.since_ms else "earliest"
        offsets = (await request.ask(f"{path}/offsets", {"at": at}))["offsets"]
        key = search.asked.client if by_client else search.asked.topic_name
        count = self._node.catalog.topic(topic).partitions
        wanted = [partition_of(key.encode(), count)] if key else list(range(count))
        for number in wanted:
            offset = offsets.get(str(number))
            if offset is None:
                notes.append(f"{topic}/{number}: its leader does not answer")
                continue
            while search.goes_on():
                got = await request.ask(
                    f"{path}/partitions/{number}/records",
                    {"offset": str(offset), "limit": str(_PAGE), "value_max_bytes": "0"},
                )
                search.take(topic, number, got["records"])
                offset = got["next_offset"]
                if offset >= got["high_watermark"]:
                    break


class _Search:
    """Records that were looked at, and which of them were asked for."""

    def __init__(self, asked: PublishesQuery) -> None:
        self.asked = asked
        self.places: list[tuple[str, int, int]] = []
        self.looked_at = 0
        self.complete = True
        self.next_since_ms: int | None = None

    def goes_on(self) -> bool:
        """Whether more may be looked at."""
        return self.complete and self.looked_at < _RECORDS_MAX

    def take(self, topic: str, partition: int, records: Sequence[Json]) -> None:
        """Look at some."""
        asked = self.asked
        for record in records:
            at_ms = record["timestamp_ms"]
            if len(self.places) == asked.limit or self.looked_at == _RECORDS_MAX:
                self.complete, self.next_since_ms = False, at_ms
                return
            self.looked_at += 1
            if at_ms < asked.since_ms or (asked.until_ms is not None and at_ms > asked.until_ms):
                continue
            if stations.topic_name_of(record) != asked.topic_name:
                continue
            client_id = stations.headers_of(record).get(stations.CLIENT, "")
            if not asked.client or client_id == asked.client:
                self.places.append((topic, partition, record["offset"]))


def _without_record(asked: PublishesQuery, mqtt: Sequence[Json]) -> Iterator[Explained]:
    """Publishes that were refused, not stored, or dropped without a record."""
    for each in mqtt:
        for decision in each["decisions"]:
            if decision["kind"] in stations.SUBSCRIPTION_KINDS or decision["stored"]:
                continue
            own = decision["kind"] in stations.PUBLISH_KINDS
            client_id = decision["client_id"] if own else decision["origin"] or ""
            way = [
                Station(
                    station="published", state="ok", at_ms=decision["at_ms"], node=each["node"],
                    who=client_id, what=f"client {client_id} published to {asked.topic_name}",
                    proof="a decision of that time",
                ),
                stations.decided(each["node"], decision),
            ]  # fmt: skip
            yield Explained(client_id=client_id, topic_name=asked.topic_name, stations=way)


def _as_it_would_be(asked: PublishesQuery, mqtt: Sequence[Json]) -> Explained:
    """The stations that such a publish would come by."""
    way = [
        Station(
            station="published", state="unknown", who=asked.client,
            what=f"no publish to {asked.topic_name} is known",
            proof="records of the topic that it is bound to, and decisions that are held",
        )
    ]  # fmt: skip
    if asked.client:
        way.append(stations.authorized(asked.client, mqtt, stored=False))
    bound = stations.bound(asked.topic_name, mqtt, "")
    return Explained(
        client_id=asked.client, topic_name=asked.topic_name,
        stations=way + ([bound] if bound is not None else []),
    )  # fmt: skip
