"""Turns to send a message before one is known: few, by address, and nobody waits without end."""

from __future__ import annotations

import asyncio

import pytest

from lakemq.meta_service.api.reading_turns import ReadingTurns


class Refused(Exception):
    pass


def turns_of(waiting_max: int, waiting_per_peer_max: int) -> ReadingTurns:
    return ReadingTurns(
        1,
        waiting_max=waiting_max,
        waiting_per_peer_max=waiting_per_peer_max,
        refusal=Refused,
    )


async def take(turns: ReadingTurns, peer: str, order: list[str], gate: asyncio.Event) -> None:
    async with turns.turn(peer):
        order.append(peer)
        await gate.wait()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_addresses_take_turns_however_many_streams_one_has() -> None:
    turns = turns_of(100, 50)
    order: list[str] = []
    gates = [asyncio.Event() for _ in range(8)]
    peers = ["a", "a", "a", "a", "a", "b", "b", "c"]
    tasks = []
    for peer, gate in zip(peers, gates, strict=True):
        tasks.append(asyncio.create_task(take(turns, peer, order, gate)))
        await settle()
    assert order == ["a"]
    for gate in gates:
        gate.set()
    await asyncio.gather(*tasks)
    assert order == ["a", "a", "b", "c", "a", "b", "a", "a"]


async def test_no_more_wait_than_may() -> None:
    turns = turns_of(3, 2)
    gate, order = asyncio.Event(), list[str]()
    tasks = [asyncio.create_task(take(turns, "a", order, gate)) for _ in range(3)]
    await settle()
    with pytest.raises(Refused):
        async with turns.turn("a"):
            pass
    tasks.append(asyncio.create_task(take(turns, "b", order, gate)))
    await settle()
    with pytest.raises(Refused):
        async with turns.turn("c"):
            pass
    gate.set()
    await asyncio.gather(*tasks)


async def test_a_turn_is_lost_neither_by_who_gives_up_waiting_nor_by_who_fails() -> None:
    turns = turns_of(9, 9)
    gate, order = asyncio.Event(), list[str]()
    first = asyncio.create_task(take(turns, "a", order, gate))
    await settle()
    waiting = [asyncio.create_task(take(turns, peer, order, gate)) for peer in "bcd"]
    await settle()
    waiting[0].cancel()
    await settle()
    first.cancel()
    waiting[1].cancel()
    await asyncio.gather(first, *waiting[:2], return_exceptions=True)
    gate.set()
    await waiting[2]
    assert order == ["a", "d"]
    async with turns.turn("e"):
        pass
