"""Rules for topic names, and topic configs as the catalog stores them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from lakemq.broker_core.api.errors import InvalidRequest, InvalidTopicName
from lakemq.broker_core.api.records.ledger_rule import ledger_rule
from lakemq.broker_core.api.types import Acks, TopicConfig

NAME_MAX_BYTES: Final = 249
"""As in Kafka, whose tools many users also have."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raises InvalidTopicName, telling the rule that is broken."""
    if not name or len(name) > NAME_MAX_BYTES:
        raise InvalidTopicName(
            f"a topic name has 1 to {NAME_MAX_BYTES} characters, not {len(name)}"
        )
    if name in (".", ".."):
        raise InvalidTopicName(f"{name!r} is not a topic name")
    match = _NAME.match(name)
    if match is None or match.end() != len(name):
        wrong = name[match.end() if match else 0]
        raise InvalidTopicName(
            f"topic name {name!r}: {wrong!r} is not allowed; letters, digits, '.', '_', '-' are"
        )


# The catalog keeps its own key for these settings, so that a field may be renamed while topics on
# disk stay readable. Each right side is a stored name, which never changes.
_CATALOG_KEYS: Final = {
    "segment_max_bytes":
        "segment_bytes_max",  # stored name
    "segment_age_max_ms":
        "segment_age_ms_max",  # stored name
    "batch_max_bytes":
        "batch_bytes_max",  # stored name
    "timestamp_ahead_max_ms":
        "timestamp_ahead_ms_max",  # stored name
}  # fmt: skip
_FIELDS: Final = {key: name for name, key in _CATALOG_KEYS.items()}


_ACKS: Final = {acks.name.lower(): acks for acks in Acks}


def acks_min_of(config: TopicConfig, default: Acks) -> Acks:
    """What appends wait for at least; `default`: where the topic does not say."""
    return _ACKS.get(config.acks_min, default)


def config_to_catalog(config: TopicConfig) -> dict[str, str | int | None]:
    """All settings by name; defaults are written too, so a later default changes no topic."""
    names = [field.name for field in fields(TopicConfig)]
    return {_CATALOG_KEYS.get(name, name): getattr(config, name) for name in names}


def config_from_catalog(values: Mapping[str, Any], defaults: TopicConfig) -> TopicConfig:
    """Inverse; settings of a newer version are ignored, absent ones get the defaults."""
    known = {field.name for field in fields(TopicConfig)}
    named = {_FIELDS.get(key, key): value for key, value in values.items()}
    given = {name: value for name, value in named.items() if name in known}
    absent = {name: getattr(defaults, name) for name in known - given.keys()}
    return TopicConfig(**given, **absent)


def altered_config(before: TopicConfig, changes: Mapping[str, str | int | None]) -> TopicConfig:
    """`before` with some settings changed, checked. Raises InvalidRequest, naming the setting."""
    known = {field.name for field in fields(TopicConfig)}
    for name in changes:
        if name not in known:
            raise InvalidRequest(f"config {name!r} is unknown; known: {', '.join(sorted(known))}")
    after = replace(before, **changes)  # type: ignore[arg-type]  # the caller has the types right
    check_config(after)
    return after


def check_config(config: TopicConfig) -> None:
    """Raises InvalidRequest, naming the setting."""
    if config.cleanup not in ("delete", "compact", "compact,delete"):
        raise InvalidRequest(f"cleanup is {config.cleanup!r}; it takes delete, compact or both")
    if config.retention_by not in ("append", "record"):
        raise InvalidRequest(f"retention_by is {config.retention_by!r}; it takes append or record")
    for name in ("retention_ms", "retention_bytes", "timestamp_ahead_max_ms"):
        limit = getattr(config, name)
        if limit is not None and limit < 0:
            raise InvalidRequest(f"{name} is {limit}; it takes 0 and more, or none")
    if config.compression not in ("producer", "none", "lz4", "zstd"):
        raise InvalidRequest(
            f"compression is {config.compression!r}; it takes producer, none, lz4 or zstd"
        )
    if config.acks_min not in ("", *_ACKS):
        raise InvalidRequest(f"acks_min is {config.acks_min!r}; it takes {', '.join(_ACKS)}")
    ledger_rule(config.ledger)
    if not 1024 <= config.batch_max_bytes <= 256 * 1024 * 1024:
        raise InvalidRequest(f"batch_max_bytes is {config.batch_max_bytes}; 1 KiB to 256 MiB")
    if config.segment_max_bytes < 4096 or config.segment_age_max_ms < 1000:
        raise InvalidRequest("segment_max_bytes takes 4096 and more, segment_age_max_ms 1000")
