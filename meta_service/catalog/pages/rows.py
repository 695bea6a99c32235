"""Pages: rows of 32 partitions, with the counters and the index that follow from them.

A change of one partition rewrites and tells its page, not the whole topic. `save_page` alone writes
pages, so that counters and index never part from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from lakemq.meta_service.api.types import PartitionDescription
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.tables import (
    LEADER_COUNTS,
    MEMBER_COUNTS,
    NODE_PAGES,
    PAGE_PREFIX,
    REPLICA_COUNTS,
    decode_number,
    encode_number,
    pack,
    unpack,
)

PAGE_PARTITIONS: Final = 32
PAGE_ID_BYTES: Final = 20
"""A page id: the topic id (16 bytes), and the number of the page in it (4, big-endian)."""
NO_NODE: Final = ""
"""Under this name are the pages with partitions that no node has."""


class Page(NamedTuple):
    """Up to 32 partitions of one topic, in order."""

    topic: str
    """Its name, by which the topic's own row is found."""
    partitions: tuple[PartitionDescription, ...]


def page_id(topic_id: str, partition: int) -> bytes:
    """The id of the page that holds a partition. `topic_id`: 32 hex digits."""
    return bytes.fromhex(topic_id) + (partition // PAGE_PARTITIONS).to_bytes(4, "big")


def topic_id_of(page: bytes) -> str:
    """The topic id (32 hex digits) in a page id."""
    return page[:16].hex()


def page_key(page: bytes) -> bytes:
    """The page's key in the KV space."""
    return PAGE_PREFIX + page


def page_ids(topic_id: str, partitions: int) -> list[bytes]:
    """The ids of all pages of a topic, in order."""
    return [page_id(topic_id, first) for first in range(0, partitions, PAGE_PARTITIONS)]


def encode_partition(partition: PartitionDescription) -> list[Any]:
    """The fields of a partition, but for its number; those at the end only if they say
    something."""
    p = partition
    fields = [p.leader, p.leader_epoch, p.partition_epoch, p.replicas, p.in_sync]
    more = [p.target, p.eligible, p.min_in_sync]
    while more and more[-1] in ((), 1):
        more.pop()
    return fields + more


def encode_page(page: Page) -> bytes:
    """The value of a page's row."""
    return pack([page.topic, [encode_partition(each) for each in page.partitions]])


def decode_page(page: bytes, value: bytes) -> Page:
    """The page that `encode_page` made; `page`: its id."""
    fields: Any = unpack(value)
    topic, partitions = fields
    first = int.from_bytes(page[16:], "big") * PAGE_PARTITIONS
    return Page(topic, tuple(PartitionDescription(first + n, *p) for n, p in enumerate(partitions)))


def read_page(draft: Draft, page: bytes) -> Page | None:
    """The page as the command sees it; None: there is no such topic, or it is shorter."""
    row = draft.row(page_key(page))
    return decode_page(page, row.value) if row is not None else None


def save_page(draft: Draft, page: bytes, before: Page | None, after: Page | None) -> None:
    """Put or delete a page. `before`: as `read_page` gave it; None: it is new."""
    if after is not None:
        draft.put_row(page_key(page), encode_page(after))
    elif before is not None:
        draft.delete_row(page_key(page))
    old = before.partitions if before else ()
    new = after.partitions if after else ()
    _count(draft, REPLICA_COUNTS, _each(p.replicas for p in old), _each(p.replicas for p in new))
    _count(draft, LEADER_COUNTS, _leaders(old), _leaders(new))
    _count(draft, MEMBER_COUNTS, _members(old), _members(new))
    was, now = _named(old), _named(new)
    for node in sorted(was ^ now):
        draft.set(index_key(node, page), b"" if node in now else None)


def index_key(node_id: str, page: bytes) -> bytes:
    """Where it is noted that a page names the node."""
    return index_prefix(node_id) + page


def index_prefix(node_id: str) -> bytes:
    """Before the page ids of a node. Names have no zero byte, so no name is the begin of another
    one's key."""
    return NODE_PAGES + node_id.encode() + b"\x00"


def pages_of(draft: Draft, node_id: str) -> Iterator[bytes]:
    """The ids of the pages that name a node, in order."""
    prefix = index_prefix(node_id)
    return (key[len(prefix) :] for key, _ in draft.scan(prefix))


def count_of(draft: Draft, table: bytes, node_id: str) -> int:
    """A node's counter: `REPLICA_COUNTS`, `LEADER_COUNTS` or `MEMBER_COUNTS`."""
    return decode_number(draft.get(table + node_id.encode()))


class PageEdits:
    """Changes of single partitions by one command: each page is read and written once."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._before: dict[bytes, Page | None] = {}
        self._now: dict[bytes, list[PartitionDescription]] = {}

    def page(self, page: bytes) -> Page | None:
        """The page with what was put into it so far; None: it does not exist."""
        if page not in self._before:
            self._before[page] = read_page(self._draft, page)
        before = self._before[page]
        if before is None or page not in self._now:
            return before
        return Page(before.topic, tuple(self._now[page]))

    def find(self, topic_id: str, partition: int) -> PartitionDescription | None:
        """The partition as it is now; None: there is none."""
        found = self.page(page_id(topic_id, partition))
        at = partition % PAGE_PARTITIONS
        return found.partitions[at] if found is not None and at < len(found.partitions) else None

    def put(self, topic_id: str, partition: PartitionDescription) -> None:
        """Take over a partition that `find` or `page` gave, and that was changed."""
        page = page_id(topic_id, partition.partition)
        before = self._before[page]
        assert before is not None
        changed = self._now.setdefault(page, list(before.partitions))
        changed[partition.partition % PAGE_PARTITIONS] = partition

    def save(self) -> None:
        """Write the pages that have changed."""
        for page in self._now:
            before, after = self._before[page], self.page(page)
            if after != before:
                save_page(self._draft, page, before, after)


# ------------------------------------------------------------ counters


def _each(names: Iterable[Sequence[str]]) -> Counter[str]:
    return Counter(name for group in names for name in group)


def _leaders(partitions: Sequence[PartitionDescription]) -> Counter[str]:
    return Counter(p.leader for p in partitions if p.leader is not None)


def _members(partitions: Sequence[PartitionDescription]) -> Counter[str]:
    return _each((*p.in_sync, *p.eligible) for p in partitions)


def _named(partitions: Sequence[PartitionDescription]) -> set[str]:
    named = {name for p in partitions for name in (*p.replicas, *p.target)}
    return named | {NO_NODE} if any(not p.replicas for p in partitions) else named


def _count(draft: Draft, table: bytes, old: Counter[str], new: Counter[str]) -> None:
    for node in sorted({*old, *new}):
        change = new[node] - old[node]
        if change:
            number = count_of(draft, table, node) + change
            # A node that nothing is left of has no counter: its name may never come again.
            draft.set(table + node.encode(), encode_number(number) if number > 0 else None)
