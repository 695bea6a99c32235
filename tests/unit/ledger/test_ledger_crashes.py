"""Goal: every record is counted once in the ledger, whatever moment a node ends at.

Method: devices write while the keeper counts, on simulated disks that end at a random step and that
refuse writes now and then; the next life goes on with what was on disk. In the end the ledger must
be that of one who reads the whole log in one go.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest

from lakemq.broker_core.api.errors import LakeMQError, StorageFenced
from lakemq.broker_core.api.records.batch import CONTROL, encode, read_header
from lakemq.broker_core.api.records.ledger_rule import ledger_rule
from lakemq.broker_core.api.records.stored import readable_batches
from lakemq.broker_core.api.types import Acks, Columns, Offset
from lakemq.plugins.ledger.config import LedgerSettings
from lakemq.plugins.ledger.device_table import DeviceTable
from lakemq.plugins.ledger.keeper import LEDGER_TOPIC, LedgerKeeper
from lakemq.plugins.ledger.reading import readings
from tests.support.node.crashing_broker import Crashed, CrashingBroker, Disk
from tests.support.seeds import seeds

RULE = "sequence=$.n"
NEVER = 10**9
DEVICES_MAX = 6


class Ticks:
    """Seconds that pass at each look at the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.004
        return self.now_s


def keeper_of(broker: CrashingBroker) -> LedgerKeeper:
    settings = LedgerSettings(checkpoint_ms=10, devices_max=DEVICES_MAX)
    return LedgerKeeper(cast(Any, broker), settings, Ticks())


async def write(broker: CrashingBroker, dice: random.Random, numbers: dict[str, int]) -> None:
    """Some devices send: in order, twice, with gaps."""
    for _ in range(dice.randint(0, 6)):
        device = f"d{dice.randrange(9)}"
        numbers[device] = max(0, numbers.get(device, 0) + dice.choice([1, 1, 1, 0, 3, -2]))
        value = b"?" if dice.random() < 0.1 else json.dumps({"n": numbers[device]}).encode()
        times = dice.randint(1, 2)
        batch = encode(Columns([value] * times, [device.encode()] * times), now_ms=5)
        log = broker.partition("air", dice.randrange(2))
        with suppress(LakeMQError, asyncio.CancelledError):
            await log.append(batch, read_header(batch), Acks.LEADER)


async def live(
    disk: Disk, dice: random.Random, crash_at: int, numbers: dict[str, int], turns: int
) -> LedgerKeeper | None:
    """One life; None: it ended early."""
    broker = CrashingBroker(disk, dice, crash_at, 0.0 if crash_at == NEVER else 0.05)
    keeper = keeper_of(broker)

    async def run() -> None:
        if "air" not in disk.topics:
            await broker.create_topic("air", 2)
            config = replace(disk.topics["air"].config, ledger=RULE)
            disk.topics["air"] = replace(disk.topics["air"], config=config)
        while True:
            with suppress(LakeMQError):  # the node would be started again
                await keeper.load()
                break
        for _ in range(turns):
            await write(broker, dice, numbers)
            await keeper.look()
        await keeper.stop()

    running = asyncio.create_task(run())
    dead = asyncio.create_task(broker.dead.wait())
    await asyncio.wait((running, dead), return_when=asyncio.FIRST_COMPLETED)
    dead.cancel()
    if broker.dead.is_set():
        running.cancel()
        with suppress(asyncio.CancelledError, Crashed):
            await running
        return None
    await running
    return keeper


def expected(disk: Disk, partition: int) -> DeviceTable:
    rule = ledger_rule(RULE)
    assert rule is not None
    table = DeviceTable(rule, RULE, DEVICES_MAX)
    for _, data in disk.logs["air", partition]:
        for reading in readings(rule, data, "air", partition, 0):
            table.take(reading)
    return table


async def play(seed: int) -> None:
    dice = random.Random(seed)
    disk = Disk()
    numbers: dict[str, int] = {}
    for _ in range(dice.randint(1, 4)):
        await live(disk, dice, dice.randint(1, 60), numbers, 12)
    last = await live(disk, dice, NEVER, numbers, 3)
    assert last is not None
    for ledger in last.ledgers():
        whole = expected(disk, ledger.partition)
        assert ledger.table.devices == whole.devices
        assert list(ledger.table.devices) == list(whole.devices)
        head = ledger.table.stored_head("air", 0)
        assert head == whole.stored_head("air", 0)
    broker = CrashingBroker(disk, dice, NEVER, 0.0)
    again = keeper_of(broker)
    await again.load()
    tables = {each.partition: each.table.devices for each in again.ledgers()}
    assert tables == {each.partition: each.table.devices for each in last.ledgers()}


@pytest.mark.parametrize("seed", seeds(40))
async def test_every_record_is_counted_once(seed: int) -> None:
    await play(seed)


async def test_nothing_is_kept_of_topics_that_do_not_ask() -> None:
    dice = random.Random(1)
    disk = Disk()
    assert await live(disk, dice, NEVER, {}, 20) is not None
    broker = CrashingBroker(disk, dice, NEVER, 0.0)
    keeper = keeper_of(broker)
    await keeper.load()
    assert [each.partition for each in keeper.ledgers()] == [0, 1]
    air = disk.topics["air"]
    disk.topics["air"] = replace(air, config=replace(air.config, ledger="interval=1s"))
    await keeper.look()
    tables = [each.table for each in keeper.ledgers()]
    assert [table.rule_text for table in tables] == ["interval=1s"] * 2
    assert sum(table.records for table in tables) == sum(
        read_header(data).record_count for part in (0, 1) for _, data in disk.logs["air", part]
    )
    disk.topics["air"] = replace(air, config=replace(air.config, ledger=""))
    for forgets in (keeper, keeper_of(broker)):
        await forgets.load()
        await forgets.look()
        assert list(forgets.ledgers()) == []
    assert await newest(broker) == {}


async def newest(broker: CrashingBroker) -> dict[bytes, bytes | None]:
    log = broker.partition(LEDGER_TOPIC, 0)
    found: dict[bytes, bytes | None] = {}
    got = await log.fetch(Offset(0), bytes_max=1 << 30)
    for batch in readable_batches(got.data, LEDGER_TOPIC, 0):
        found |= dict(zip([key or b"" for key in batch.keys()], batch.values(), strict=True))  # noqa: SIM118
    return {key: value for key, value in found.items() if value is not None}


async def test_a_rule_from_now_on_leaves_out_what_is_there() -> None:
    dice = random.Random(3)
    disk = Disk()
    assert await live(disk, dice, NEVER, {}, 5) is not None
    air = disk.topics["air"]
    disk.topics["air"] = replace(air, config=replace(air.config, ledger=RULE + ";from=latest"))
    broker = CrashingBroker(disk, dice, NEVER, 0.0)
    keeper = keeper_of(broker)
    await keeper.load()
    await keeper.look()
    assert [each.table.records for each in keeper.ledgers()] == [0, 0]
    batch = encode(Columns([b'{"n":1}'], [b"d"]), now_ms=5)
    await broker.partition("air", 0).append(batch, read_header(batch), Acks.LEADER)
    await keeper.look()
    assert [each.table.records for each in keeper.ledgers()] == [1, 0]


async def test_what_retention_deleted_before_it_was_counted_is_told() -> None:
    dice = random.Random(4)
    disk = Disk()
    keeper = await live(disk, dice, NEVER, {}, 5)
    assert keeper is not None
    broker = CrashingBroker(disk, dice, NEVER, 0.0)
    log = broker.partition("air", 0)
    batch = encode(Columns([b'{"n":1}'] * 3, [b"d"] * 3), now_ms=5)
    await log.append(batch, read_header(batch), Acks.LEADER)
    await log.delete_records(Offset(log.high_watermark - 1))
    again = keeper_of(broker)
    await again.load()
    await again.look()
    table = next(again.ledgers()).table
    assert (table.skipped.deleted, table.position) == (2, log.high_watermark)


async def test_markers_and_batches_that_can_not_be_read_are_passed() -> None:
    dice = random.Random(5)
    disk = Disk()
    assert await live(disk, dice, NEVER, {}, 5) is not None
    broker = CrashingBroker(disk, dice, NEVER, 0.0)
    log = broker.partition("air", 0)
    marker = encode(Columns([b"marker"]), now_ms=5, attributes=CONTROL)
    await log.append(marker, read_header(marker), Acks.LEADER)
    keeper = keeper_of(broker)
    await keeper.load()
    (before, _) = (each.table.records for each in keeper.ledgers())
    await keeper.look()
    table = next(keeper.ledgers()).table
    assert (table.position, table.records) == (log.high_watermark, before)


async def test_a_turn_that_fails_is_counted_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dice = random.Random(1)
    disk = Disk()
    keeper = await live(disk, dice, NEVER, {}, 3)
    assert keeper is not None and keeper.failures == 0
    broker = CrashingBroker(disk, dice, NEVER, 0.0)
    keeper = keeper_of(broker)
    await keeper.load()
    await write(broker, dice, {})

    async def fails(*_: object, **__: object) -> None:
        raise StorageFenced("the disk has failed")

    for number in (0, 1):
        monkeypatch.setattr(broker.partition("air", number), "fetch", fails)
        batch = encode(Columns([b'{"n": 1}'], [b"d1"]), now_ms=5)
        await broker.partition("air", number).append(batch, read_header(batch), Acks.LEADER)
    await keeper.look()
    assert keeper.failures == 2
    monkeypatch.undo()
    await keeper.look()
    assert keeper.failures == 2
    assert sum(each.table.records for each in keeper.ledgers()) == sum(
        read_header(data).record_count for part in (0, 1) for _, data in disk.logs["air", part]
    )
