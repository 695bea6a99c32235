"""Topics: list, describe, create, alter, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_type_hints

from pydantic import Field, create_model

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.routes import (
    EACH,
    AdminListing,
    AdminRequest,
    AdminRoute,
    Answer,
    AnyRoute,
    Body,
    ChangeQuery,
    Flag,
    Need,
    NoQuery,
    PageQuery,
    expect,
)
from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.leadership import LACKS, lacks, leadership
from lakemq.broker_core.api.state.internal_topics import is_internal
from lakemq.broker_core.api.types import Operation, Resource, TopicConfig, TopicInfo
from lakemq.plugins.admin.resources.brokers import broker_of
from lakemq.plugins.admin.resources.rights import may

_READ = Need(Operation.DESCRIBE, "topic", "topic")


class TopicRow(Answer):
    """A topic in a list, as the catalog has it."""

    name: str
    topic_id: str
    partitions: int
    replication: int
    """Replicas that each partition shall have."""
    internal: bool
    leaderless: int
    """Partitions that no node leads."""
    under_replicated: int
    """Partitions with fewer in-sync replicas than wanted."""
    retention_ms: int | None
    retention_bytes: int | None
    cleanup: str
    schema_subject: str
    """Subject whose schema every value must fit; empty: none."""


class TopicAnswer(TopicRow):
    """A topic with its settings. `partitions` of its own are at `/topics/{topic}/partitions`."""

    min_in_sync: int
    lacks: dict[str, int]
    """What partitions lack, and how many do."""
    config: dict[str, str | int | None]
    """Every setting; null: without limit."""
    defaults: dict[str, str | int | None]
    """What each would be if it were reset."""
    revision: int
    """Of the catalog, at the last change."""


class TopicQuery(PageQuery):
    """Parameters of the list of topics."""

    internal: Flag = False
    """Also those that the broker keeps for itself, which `admins` may see."""
    lacks: str = Field(default="", pattern=f"^({'|'.join(LACKS)})?$")
    """Only topics of which a partition lacks this."""


_HINTS: Final = get_type_hints(TopicConfig)
_SIZES_MAX: Final = 2**62


def _field(name: str) -> str:
    """Of the model: `schema` is a method of pydantic's."""
    return "schema_subject" if name == "schema" else name


def _setting(name: str) -> Any:
    """(type, field) of a setting that may be left out."""
    if _HINTS[name] is str:
        alias = name if _field(name) != name else None
        text = Annotated[str, Field(max_length=249)]
        return text, Field(default_factory=lambda: None, alias=alias)
    limited = Annotated[int, Field(ge=0, le=_SIZES_MAX)]
    kind = limited if _HINTS[name] is int else limited | None
    return kind, Field(default_factory=lambda: None)


if TYPE_CHECKING:
    TopicSettings = Body
    SettingName = str
else:
    SettingName = Literal[tuple(_HINTS)]
    TopicSettings = create_model(
        "TopicSettings",
        __base__=Body,
        __doc__="Settings of a topic by name; null: without limit. What is left out stays.",
        **{_field(each.name): _setting(each.name) for each in fields(TopicConfig)},
    )


class TopicBody(Body):
    """A topic to be created."""

    name: str = Field(min_length=1, max_length=249)
    partitions: int | None = Field(default=None, ge=1, le=10_000)
    """Left out: `[topics] partitions`."""
    replication: int | None = Field(default=None, ge=1, le=32)
    """Left out: `[topics] replication`."""
    min_in_sync: int | None = Field(default=None, ge=1, le=32)
    config: TopicSettings = Field(default_factory=TopicSettings)


class TopicChanges(Body):
    """What is to be changed; what is left out stays."""

    partitions: int | None = Field(default=None, ge=1, le=10_000)
    """How many there shall be in all; never fewer than there are."""
    replication: int | None = Field(default=None, ge=1, le=32)
    min_in_sync: int | None = Field(default=None, ge=1, le=32)
    config: TopicSettings = Field(default_factory=TopicSettings)
    reset: list[SettingName] = Field(default_factory=list, max_length=100)
    """Settings that go back to their defaults."""


class Deleted(Answer):
    """What was deleted, or would be."""

    name: str
    partitions: int


class TopicRoutes:
    """Below `/api/v1/topics`."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        create, one = Need(Operation.DESCRIBE, EACH.kind), "topics/{topic}"
        alter = Need(Operation.ALTER, "topic", "topic")
        delete = Need(Operation.DELETE, "topic", "topic")
        return [
            AdminListing(
                "topics", TopicRow, self._all, self._rows, lambda topic: topic.name,
                {
                    "name": lambda topic: topic.name,
                    "partitions": lambda topic: topic.partitions,
                    "replication": lambda topic: replication_of(topic),
                    "retention_ms": lambda topic: topic.config.retention_ms,
                },
                keep=self._is_wanted, query=TopicQuery, need=EACH, summary="List topics.",
            ),
            AdminRoute("POST", "topics", self.create, TopicAnswer, ChangeQuery, TopicBody,
                       need=create, status=201),
            AdminRoute("GET", one, self.describe, TopicAnswer, NoQuery, need=_READ, tagged=True),
            AdminRoute("PATCH", one, self.alter, TopicAnswer, NoQuery, TopicChanges, need=alter,
                       tagged=True),
            AdminRoute("DELETE", one, self.delete, Deleted, ChangeQuery, need=delete, tagged=True),
        ]  # fmt: skip

    # -- the list

    async def _all(self, request: AdminRequest) -> Sequence[TopicInfo]:
        return self._node.catalog.topics()

    def _is_wanted(self, topic: TopicInfo, request: AdminRequest) -> bool:
        asked = expect(request.asked, TopicQuery)
        if is_internal(topic.name) and not asked.internal:
            return False
        if asked.lacks and not any(asked.lacks in lacks(topic, each) for each in topic.leaders):
            return False
        return may(self._node.catalog, request, Operation.DESCRIBE, "topic", topic.name)

    async def _rows(self, topics: Sequence[TopicInfo], request: AdminRequest) -> Sequence[TopicRow]:
        return [TopicRow(**_row(topic)) for topic in topics]

    # -- one

    def _answer(self, topic: TopicInfo) -> TopicAnswer:
        lacking = [each for held in topic.leaders for each in lacks(topic, held)]
        broker = self._node.broker
        defaults = asdict(broker.topic_defaults() if broker is not None else TopicConfig())
        return TopicAnswer(
            **_row(topic),
            min_in_sync=leadership(topic, 0).min_in_sync,
            lacks={name: lacking.count(name) for name in LACKS},
            config=asdict(topic.config),
            defaults=defaults,
            revision=topic.revision,
        )

    async def describe(self, request: AdminRequest) -> TopicAnswer:
        """Describe a topic. Raises UnknownTopic."""
        return self._answer(self._node.catalog.topic(request.path["topic"]))

    async def create(self, request: AdminRequest) -> TopicAnswer:
        """Create a topic. Raises TopicExists, InvalidTopicName, InvalidRequest, NotAuthorized."""
        given, broker = expect(request.given, TopicBody), broker_of(self._node)
        broker.authorize(
            request.principal, Operation.CREATE, Resource("topic", given.name), request.context
        )
        config = altered(broker.topic_defaults(), given.config)
        if expect(request.asked, ChangeQuery).dry_run:
            wanted = TopicInfo(given.name, "", given.partitions or 1, config)
            return self._answer(replace(wanted, replication=given.replication or 0))
        made = await broker.create_topic(
            given.name, given.partitions, config,
            replication=given.replication, min_in_sync=given.min_in_sync,
        )  # fmt: skip
        return self._answer(made)

    async def alter(self, request: AdminRequest) -> TopicAnswer:
        """Change settings, partitions and replicas of a topic. Raises UnknownTopic,
        InvalidRequest."""
        given, broker = expect(request.given, TopicChanges), broker_of(self._node)
        before = broker.topic(request.path["topic"])
        defaults = asdict(broker.topic_defaults())
        changes: dict[str, str | int | None] = _set(given.config)
        for name in given.reset:
            if name in changes:
                raise InvalidRequest(f"config {name} is both set and reset")
            changes[name] = defaults[name]
        after = await broker.alter_topic(
            before.name, partitions=given.partitions, config=changes or None,
            replication=given.replication, min_in_sync=given.min_in_sync,
        )  # fmt: skip
        request.notes["before"] = _noted(before, changes)
        request.notes["after"] = _noted(after, changes)
        return self._answer(after)

    async def delete(self, request: AdminRequest) -> Deleted:
        """Delete a topic and its records. Raises UnknownTopic."""
        broker = broker_of(self._node)
        topic = broker.topic(request.path["topic"])
        request.notes["before"] = {"topic_id": topic.topic_id, "partitions": topic.partitions}
        if not expect(request.asked, ChangeQuery).dry_run:
            await broker.delete_topic(topic.name)
        return Deleted(name=topic.name, partitions=topic.partitions)


def replication_of(topic: TopicInfo) -> int:
    """Replicas that a partition has, or shall have."""
    return topic.replication or max((len(each.replicas) for each in topic.leaders), default=0)


def _row(topic: TopicInfo) -> dict[str, Any]:
    found = [lacks(topic, each) for each in topic.leaders]
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": topic.partitions,
        "replication": replication_of(topic),
        "internal": is_internal(topic.name),
        "leaderless": sum("leaderless" in each for each in found),
        "under_replicated": sum("under-replicated" in each for each in found),
        "retention_ms": topic.config.retention_ms,
        "retention_bytes": topic.config.retention_bytes,
        "cleanup": topic.config.cleanup,
        "schema_subject": topic.config.schema,
    }


def altered(base: TopicConfig, changes: Body) -> TopicConfig:
    """The base with some settings changed; their values are checked where it is used."""
    return replace(base, **_set(changes))


def _set(changes: Body) -> dict[str, Any]:
    """Those that were given, by their names."""
    return changes.model_dump(exclude_unset=True, by_alias=True)


def _noted(topic: TopicInfo, names: Mapping[str, object]) -> dict[str, object]:
    """What the audit log keeps of a topic."""
    config = asdict(topic.config)
    return {
        "partitions": topic.partitions,
        "replication": topic.replication,
        "config": {name: config[name] for name in names},
    }
