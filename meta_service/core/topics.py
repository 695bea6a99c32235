"""Topics as the cache has them, put together from rows and pages; and what changes of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from lakemq.meta_service.api.types import PartitionsChange, TopicChange, TopicDescription
from lakemq.meta_service.catalog.pages.rows import Page, decode_page, page_ids, page_key
from lakemq.meta_service.catalog.tables import PAGE_PREFIX, TOPIC_PREFIX, Row, unpack
from lakemq.meta_service.catalog.topics import decode_topic, partitions_in, topic_key
from lakemq.meta_service.core.cache import Cache
from lakemq.meta_service.core.watches import Events, WatchHub

PREFIXES: Final = (TOPIC_PREFIX, PAGE_PREFIX)
Change = TopicChange | PartitionsChange


def topic_of_rows(key: bytes, row: Row, pages: Mapping[bytes, Row] | Cache) -> TopicDescription:
    """A topic with its partitions. `pages`: rows by their keys."""

    def find_page(page: bytes) -> tuple[Page, int] | None:
        found = pages.get(page_key(page))
        return (decode_page(page, found.value), found.mod_revision) if found is not None else None

    return decode_topic(key, row.value, row.mod_revision, find_page)


def find_topic(cache: Cache, name: str) -> TopicDescription | None:
    """The topic as it is now; None: there is none."""
    key = topic_key(name)
    row = cache.get(key)
    return topic_of_rows(key, row, cache) if row is not None else None


def all_topics(cache: Cache, after: bytes = b"") -> Iterator[tuple[TopicDescription, int]]:
    """(topic, bytes of its rows), in the order of names; `after`: behind this key."""
    for key, row in cache.scan(TOPIC_PREFIX, after=after):
        yield topic_of_rows(key, row, cache), len(key) + len(row.value) + _page_bytes(cache, row)


def _page_bytes(cache: Cache, row: Row) -> int:
    count = partitions_in(row.value)
    if count is None:
        return 0
    pages = (cache.get(page_key(page)) for page in page_ids(_topic_id(row.value), count))
    return sum(len(page.value) for page in pages if page is not None)


def _topic_id(value: bytes) -> str:
    fields: Any = unpack(value)
    return str(fields[0])


async def topic_changes(
    hub: WatchHub, cache: Cache, start_revision: int, *, progress_s: float | None = None
) -> AsyncGenerator[tuple[int, Sequence[Change]]]:
    """(revision, what it changed of topics), every revision that did from `start_revision` on.

    A topic that was created or altered is told as it is by now, which may be newer than the
    revision; what is over by now is left out, for a later revision tells the end of it. With
    `progress_s` as `WatchHub.watch_revisions`. Raises Compacted.
    """
    batches = hub.watch_revisions(
        PREFIXES, start_revision, with_reserved=True, progress_s=progress_s
    )
    async with aclosing(batches):
        async for revision, events in batches:
            yield revision, _changes(cache, revision, events)


def _changes(cache: Cache, revision: int, events: Events) -> list[Change]:
    changes: dict[str, TopicChange] = {}
    for key, value in events:
        if key.startswith(TOPIC_PREFIX):
            name = key[len(TOPIC_PREFIX) :].decode()
            change = _row_change(cache, revision, name, key, value)
            if change is not None:
                changes[name] = change
    partly: dict[str, PartitionsChange] = {}
    for key, value in events:
        if not key.startswith(PAGE_PREFIX) or value is None:
            continue  # pages go with their topic
        page = key[len(PAGE_PREFIX) :]
        found = decode_page(page, value)
        topic = cache.get(topic_key(found.topic))
        topic_id = page[:16].hex()
        if found.topic in changes or topic is None or _topic_id(topic.value) != topic_id:
            continue
        before = partly[found.topic].partitions if found.topic in partly else ()
        partly[found.topic] = PartitionsChange(
            revision, found.topic, topic_id, before + found.partitions
        )
    return [*changes.values(), *partly.values()]


def _row_change(
    cache: Cache, revision: int, name: str, key: bytes, value: bytes | None
) -> TopicChange | None:
    if value is None:
        return TopicChange(revision, name, None)
    if partitions_in(value) is None:
        return TopicChange(revision, name, decode_topic(key, value, revision))
    now = find_topic(cache, name)
    # It was deleted since, and perhaps made again: those revisions come.
    if now is None or now.topic_id != _topic_id(value):
        return None
    return TopicChange(revision, name, now)
