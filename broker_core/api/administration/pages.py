"""One page of a list of any length: looks at some items, lets others have their turn, goes on."""

from __future__ import annotations

import base64
import binascii
import heapq
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple

from lakemq.broker_core.api.administration.routes import (
    AdminListing,
    AdminRequest,
    ItemT,
    PageQuery,
    SortKey,
    expect,
)
from lakemq.broker_core.api.errors import InvalidRequest

STRIDE: Final = 150
"""Items that are looked at, rights and all, before others have their turn."""
Pause = Callable[[], Awaitable[None]]


class Place(NamedTuple):
    """Where an item stands in a sorted list: orders as the list does."""

    rank: int
    """0: the value is null, 1: a number, 2: a text."""
    value: Any
    identity: str
    node: str

    @classmethod
    def of(cls, value: SortKey, identity: str, node: str) -> Place:
        """`value`: of the field that the list is sorted by."""
        if value is None:
            return cls(0, 0, identity, node)
        return cls(2 if isinstance(value, str) else 1, value, identity, node)


class Order(NamedTuple):
    """What a list is sorted by."""

    field: str
    descending: bool

    def __str__(self) -> str:
        return f"-{self.field}" if self.descending else self.field


@dataclass(frozen=True)
class Cut(Generic[ItemT]):
    """What a page is made of."""

    items: Sequence[ItemT]
    places: Sequence[Place]
    more: bool
    """There are further items behind."""
    total: int
    """Of all pages."""


def order_of(listing: AdminListing[Any], query: PageQuery) -> Order:
    """Raises InvalidRequest: the list can't be sorted by that."""
    if not query.sort:
        return Order(next(iter(listing.sorts)), listing.descending)
    field = query.sort.removeprefix("-")
    if field not in listing.sorts:
        raise InvalidRequest(f"sort is {query.sort!r}; it takes {', '.join(listing.sorts)}")
    return Order(field, query.sort.startswith("-"))


def cursor_of(order: Order, last: Place) -> str:
    """Names the place behind which the next page begins."""
    text = json.dumps([str(order), *last], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def place_in(cursor: str, order: Order) -> Place | None:
    """Inverse; None: the first page. Raises InvalidRequest."""
    if not cursor:
        return None
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        sort, rank, value, identity, node = json.loads(text)
        kinds: dict[int, type | tuple[type, ...]] = {0: int, 1: (int, float), 2: str}
        fits = isinstance(value, kinds[rank]) and isinstance(identity, str)
    except (binascii.Error, ValueError, TypeError, KeyError, RecursionError):
        fits = False
    if not (fits and isinstance(node, str)):
        raise InvalidRequest("cursor is none that a page gave")
    if sort != str(order):
        raise InvalidRequest("cursor is of a list in another order: begin with the first page")
    return Place(rank, value, identity, node)


async def cut_page(
    listing: AdminListing[ItemT],
    request: AdminRequest,
    node: str,
    pause: Pause,
    *,
    stride: int = STRIDE,
) -> Cut[ItemT]:
    """The items of one page. `node`: where they are. Awaits `pause` after each `stride` items.
    Raises InvalidRequest."""
    query = expect(request.asked, PageQuery)
    order = order_of(listing, query)
    after = place_in(query.cursor, order)
    value_of, text = listing.sorts[order.field], query.q.lower()
    items = await listing.items(request)
    await pause()
    best: list[tuple[Place, int]] = []
    total = 0
    pick = heapq.nlargest if order.descending else heapq.nsmallest
    for start in range(0, len(items), stride):
        found = []
        for index in range(start, min(start + stride, len(items))):
            item = items[index]
            identity = listing.identity(item)
            if text and text not in identity.lower() or not listing.keep(item, request):
                continue
            total += 1
            place = Place.of(value_of(item), identity, node)
            if after is None or (place < after if order.descending else place > after):
                found.append((place, index))
        best = pick(query.limit + 1, [*best, *found])
        await pause()
    shown = best[: query.limit]
    return Cut(
        [items[index] for _, index in shown],
        [place for place, _ in shown],
        len(best) > len(shown),
        total,
    )
