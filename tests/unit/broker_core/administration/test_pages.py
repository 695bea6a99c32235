"""Goal: pages of any order hold each item once, whatever comes and goes; and no page looks at more
than some items before others have their turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.administration.pages import (
    Cut,
    Order,
    Place,
    cursor_of,
    cut_page,
    order_of,
    place_in,
)
from lakemq.broker_core.api.administration.routes import (
    AdminListing,
    AdminRequest,
    Answer,
    PageQuery,
)
from lakemq.broker_core.api.errors import InvalidRequest

Item = tuple[str, int | None]


class Row(Answer):
    """Not made here."""


def listing(items: Sequence[Item]) -> AdminListing[Item]:
    async def all_items(request: AdminRequest) -> Sequence[Item]:
        return items

    async def no_rows(items: Sequence[Item], request: AdminRequest) -> Sequence[Answer]:
        raise AssertionError

    return AdminListing(
        "x", Row, all_items, no_rows, lambda item: item[0],
        {"name": lambda item: item[0], "size": lambda item: item[1]},
    )  # fmt: skip


async def no_pause() -> None:
    pass


async def page(items: Sequence[Item], **query: object) -> tuple[Cut[Item], str | None]:
    asked = PageQuery.model_validate(query)
    order = order_of(listing(items), asked)
    cut = await cut_page(listing(items), AdminRequest({}, {}, asked=asked), "n", no_pause)
    return cut, cursor_of(order, cut.places[-1]) if cut.more else None


ITEMS = st.lists(
    st.tuples(st.text("abc", min_size=1, max_size=3), st.none() | st.integers(0, 3)),
    max_size=30, unique_by=lambda item: item[0],
)  # fmt: skip


@given(ITEMS, st.sampled_from(["name", "-name", "size", "-size"]), st.integers(1, 7))
async def test_pages_are_the_sorted_whole(items: list[Item], sort: str, limit: int) -> None:
    found: list[Item] = []
    cursor: str | None = ""
    while cursor is not None:
        cut, cursor = await page(items, sort=sort, limit=limit, cursor=cursor)
        assert cut.total == len(items)
        found += cut.items
    field = (lambda item: (item[0],)) if "name" in sort else _by_size
    assert found == sorted(items, key=field, reverse=sort.startswith("-"))


def _by_size(item: Item) -> tuple[object, ...]:
    return (item[1] is not None, item[1] or 0, item[0])


async def test_what_comes_and_goes_between_pages_moves_nothing_else() -> None:
    items: list[Item] = [(f"t{number:02d}", number) for number in range(10)]
    first, cursor = await page(items, limit=4)
    later = [("a-new", 0), *items[1:3], *items[5:], ("t035", 0)]
    second, _ = await page(later, limit=4, cursor=cursor)
    assert [name for name, _ in first.items] == ["t00", "t01", "t02", "t03"]
    assert [name for name, _ in second.items] == ["t035", "t05", "t06", "t07"]


async def test_a_text_is_looked_for_in_names_alone() -> None:
    cut, _ = await page([("Pump-7", 1), ("valve", 7)], q="PUMP")
    assert (list(cut.items), cut.total) == ([("Pump-7", 1)], 1)


@pytest.mark.parametrize("cursor", ["?", "aGVsbG8", "W10", "WzEsMiwzLDQsNV0", "W" * 5000])
def test_a_cursor_that_no_page_gave(cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        place_in(cursor, Order("name", False))


@given(st.text(max_size=20), st.none() | st.integers() | st.floats(allow_nan=False) | st.text())
def test_a_cursor_names_a_place(identity: str, value: str | int | float | None) -> None:
    place, order = Place.of(value, identity, "n"), Order("size", True)
    assert place_in(cursor_of(order, place), order) == place
    with pytest.raises(InvalidRequest, match="another order"):
        place_in(cursor_of(order, place), replace_order(order))


def replace_order(order: Order) -> Order:
    return order._replace(descending=not order.descending)


async def test_others_have_their_turn_after_some_items() -> None:
    """10,000 topics: what is looked at between two pauses is bounded, whatever is asked."""
    items: list[Item] = [(f"t{number}", number) for number in range(10_000)]
    looked, before, slices = 0, 0, list[int]()

    async def pause() -> None:
        nonlocal before
        slices.append(looked - before)
        before = looked

    def counted(item: Item) -> str:
        nonlocal looked
        looked += 1
        return item[0]

    for query in ({}, {"limit": 500, "sort": "-size"}, {"q": "t9999"}):
        request = AdminRequest({}, {}, asked=PageQuery.model_validate(query))
        slices.clear()
        await cut_page(replace(listing(items), identity=counted), request, "n", pause)
        assert 0 < max(slices) <= 500 and sum(slices) == len(items)
