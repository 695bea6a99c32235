"""Goal: what nodes say of sizes takes no more memory than the catalog has partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from lakemq.meta_service.catalog.pages.rows import page_id, page_key
from lakemq.meta_service.catalog.tables import Row
from lakemq.meta_service.control.partition_sizes import PartitionSizes

ID, GONE = "a" * 32, "b" * 32
ROW = Row(b"", 1, 1, 1)


class Gateway:
    """With the pages of partitions 0 to 63 of topic `ID`."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Sequence[tuple[bytes, Row | None]]], None]] = []
        self.pages = {page_key(page_id(ID, first)): ROW for first in (0, 32)}
        self.cache = SimpleNamespace(get=self.pages.get)


def sizes_of(gateway: Gateway) -> PartitionSizes:
    found: Any = gateway
    return PartitionSizes(found)


def test_only_sizes_of_what_there_is_are_kept() -> None:
    gateway = Gateway()
    sizes = sizes_of(gateway)
    sizes.note([(ID, 0, 5), (ID, 40, 6), (ID, 64, 7), (GONE, 0, 8), ("ab", 0, 9)])
    assert sizes.sizes() == {(ID, 0): 5, (ID, 40): 6}
    sizes.note([(ID, 40, 16)])
    assert sizes.sizes() == {(ID, 0): 5, (ID, 40): 16}


def test_sizes_go_with_their_topic_and_with_the_leadership() -> None:
    gateway = Gateway()
    sizes = sizes_of(gateway)
    sizes.note([(ID, 0, 5), (ID, 40, 6)])
    (forget,) = gateway.listeners
    forget([(page_key(page_id(ID, 32)), ROW), (page_key(page_id(ID, 0)), None)])
    assert sizes.sizes() == {(ID, 40): 6}
    sizes.restart()
    assert sizes.sizes() == {}
