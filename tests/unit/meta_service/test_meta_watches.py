"""Watches and the cache, without a member behind them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.meta_service.api.errors import Compacted, NoLeader
from lakemq.meta_service.catalog.tables import Row
from lakemq.meta_service.core.cache import Cache
from lakemq.meta_service.core.watches import Events, WatchHub


def hub_with(history: dict[int, Events]) -> WatchHub:
    def read(first: int, count: int) -> list[tuple[int, Events]]:
        found = []
        for revision in range(first, first + count):
            if revision not in history:
                break
            found.append((revision, history[revision]))
        return found

    return WatchHub(read)


async def take(hub: WatchHub, count: int, start: int = 1, prefix: bytes = b"") -> list[int]:
    seen: list[int] = []
    async with contextlib.aclosing(hub.watch(prefix, start)) as events:
        async for event in events:
            seen.append(event.revision)
            if len(seen) == count:
                break
    return seen


async def test_history_and_news_join_without_gap_or_repeat() -> None:
    hub = hub_with({revision: [(b"k", b"v")] for revision in range(1, 6)})
    hub.start(5, 0)
    taking = asyncio.create_task(take(hub, 8))
    await asyncio.sleep(0)
    for revision in (6, 7, 8):
        hub.publish(revision, 0, [(b"k", b"v")])
        await asyncio.sleep(0)
    assert await taking == list(range(1, 9))


async def test_all_of_many_watchers_are_woken() -> None:
    hub = hub_with({})
    tasks = [asyncio.create_task(take(hub, 20)) for _ in range(500)]
    await asyncio.sleep(0)
    for revision in range(1, 21):
        hub.publish(revision, 0, [(b"k", b"v")])
        await asyncio.sleep(0)
    for seen in await asyncio.gather(*tasks):
        assert seen == list(range(1, 21))
    assert hub.watchers == 0


async def test_many_watchers_leave_the_event_loop_to_others() -> None:
    hub = hub_with({})
    tasks = [asyncio.create_task(take(hub, 1)) for _ in range(500)]
    await asyncio.sleep(0)
    hub.publish(1, 0, [(b"k", b"v")])
    woken = [0]
    while woken[-1] < 500:
        await asyncio.sleep(0)  # a turn of the loop, as a write needs several of them
        woken.append(sum(task.done() for task in tasks))
    steps = [after - before for before, after in itertools.pairwise(woken)]
    assert max(steps) <= 50
    assert steps.count(0) > 10, "it turned no more often than it had to for the watchers"


async def test_watchers_at_the_same_place_share_what_they_get() -> None:
    hub = hub_with({})
    hub.publish(1, 0, [(b"k", b"v"), (b"other", b"v")])
    watches = [hub.watch_revisions(b"k", 1) for _ in range(2)]
    first, second = [await anext(watch) for watch in watches]
    assert first == (1, [(b"k", b"v")])
    assert first[1] is second[1]
    waiting = [asyncio.ensure_future(anext(watch)) for watch in watches]
    await asyncio.sleep(0)
    hub.publish(2, 0, [(b"k", b"new")])
    assert [await each for each in waiting] == [(2, [(b"k", b"new")])] * 2
    for watch in watches:
        await watch.aclose()


async def test_what_was_shared_is_not_given_for_newer_revisions() -> None:
    hub = hub_with({1: [(b"k", b"old")]})
    hub.start(1, 0)
    assert await take(hub, 1) == [1]
    hub.start(3, 1)  # a snapshot was installed: revision 1 is gone
    with pytest.raises(Compacted):
        await take(hub, 1)
    hub.publish(4, 1, [(b"k", b"v")])
    assert await take(hub, 1, start=4) == [4]
    hub.publish(5, 4, [(b"k", b"v")])  # and now 4 is
    with pytest.raises(Compacted):
        await take(hub, 1, start=4)


async def test_other_prefixes_and_reserved_keys_are_not_seen() -> None:
    hub = hub_with({})
    hub.publish(1, 0, [(b"a", b""), (b"\x00topic/t", b"")])
    hub.publish(2, 0, [(b"b", b"")])
    assert await take(hub, 1, prefix=b"b") == [2]
    assert await take(hub, 2) == [1, 2]


async def test_what_is_compacted_is_told() -> None:
    hub = hub_with({})
    hub.start(100, 90)
    with pytest.raises(Compacted) as caught:
        await take(hub, 1, start=90)
    assert caught.value.compact_revision == 90


async def test_watchers_are_told_when_nothing_can_come() -> None:
    hub = hub_with({})
    tasks = [asyncio.create_task(take(hub, 1)) for _ in range(200)]
    await asyncio.sleep(0)
    hub.fail(NoLeader("stopped"))
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, NoLeader) for outcome in outcomes)


async def test_a_quiet_watch_reports_progress_and_leaves_nothing_behind() -> None:
    hub = hub_with({})
    hub.start(7, 0)
    batches = hub.watch_revisions(b"", 8, progress_s=0.001)
    for _ in range(5):
        assert await anext(batches) == (7, ())
    await batches.aclose()
    assert not hub._waiting
    assert hub.watchers == 0


_changes = st.lists(
    st.tuples(st.binary(min_size=1, max_size=2), st.none() | st.binary(max_size=3)), max_size=40
)


@given(_changes, st.binary(max_size=2), st.binary(max_size=2))
def test_the_cache_is_a_sorted_mapping(
    changes: list[tuple[bytes, bytes | None]], prefix: bytes, after: bytes
) -> None:
    cache, model = Cache(), dict[bytes, bytes]()
    for revision, (key, value) in enumerate(changes, 1):
        row = Row(value, revision, revision, 1) if value is not None else None
        cache.update([(key, row)], revision, revision)
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value
    wanted = sorted(k for k in model if k.startswith(prefix) and (not after or k > after))
    assert [key for key, _ in cache.scan(prefix, after=after)] == wanted
    assert [key for key, _ in cache.scan(prefix, 2, after=after)] == wanted[:2]
    assert cache.size_bytes == sum(len(k) + len(v) for k, v in model.items())
    assert len(cache) == len(model)
