"""`/api/v1/ledger`: what is counted, by partition and by device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pydantic import Field

from lakemq.broker_core.api.administration.routes import (
    EACH,
    AdminListing,
    AdminRequest,
    Answer,
    AnyRoute,
    OwnPageQuery,
    expect,
)
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.types import Operation, Resource
from lakemq.plugins.ledger.device_table import Device
from lakemq.plugins.ledger.keeper import Ledger, LedgerKeeper


class LedgerQuery(OwnPageQuery):
    """Which ledgers."""

    topic: str = Field(default="", max_length=249)
    """Only of this topic."""


class DeviceQuery(LedgerQuery):
    """Which devices."""

    device: str = Field(default="", max_length=256)
    """Only the one of this name."""


class LedgerRow(Answer):
    """The ledger of a partition."""

    node: str
    topic: str
    partition: int
    rule: str
    """The topic's setting `ledger`."""
    devices: int
    records: int
    """That were looked at."""
    lag: int
    """Records that were not looked at yet."""
    unread: int
    """Without a device, a number or a time that could be read."""
    deleted: int
    """Deleted by retention before they were looked at."""
    evicted: int
    """Devices that were forgotten, because there were more than `devices_max`."""


class DeviceRow(Answer):
    """A device in one partition. Times in ms since 1970, UTC."""

    node: str
    topic: str
    partition: int
    device: str
    records: int
    missing: int
    """Numbers, or intervals, that did not come."""
    gaps: int
    """In how many pieces they were missing at first."""
    late: int
    """Came after a higher number, or a later time."""
    duplicates: int
    strays: int
    """Too far from the others to count."""
    restarts: int
    """How often the device began again."""
    last_number: int | None
    """The highest; null: intervals are counted."""
    first_ms: int
    last_ms: int
    """Timestamp of the record that came last."""
    newest_ms: int | None
    """Time of the newest reading."""
    overdue: int | None
    """Intervals since then in which nothing came; null: numbers are counted."""
    delay_ms: int | None
    """What the last record took from the device's clock to its timestamp; null: no time is read."""
    delay_max_ms: int | None
    offset: int
    """Of the record that came last."""


class _Counted(NamedTuple):
    ledger: Ledger
    device: Device


class LedgerRoutes:
    """Who may read a topic may see its ledger."""

    def __init__(self, broker: Broker, keeper: LedgerKeeper, now_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._keeper = keeper
        self._now_ms = now_ms

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        return [
            AdminListing(
                "ledger/partitions", LedgerRow, self._partitions, self._partition_rows,
                lambda each: f"{each.topic} {each.partition:05d}",
                {"topic": lambda each: f"{each.topic} {each.partition:05d}",
                 "devices": lambda each: len(each.table.devices)},
                query=LedgerQuery, need=EACH, own=True,
                summary="List the partitions of topics with a ledger.",
            ),
            AdminListing(
                "ledger/devices", DeviceRow, self._devices, self._device_rows,
                lambda each: f"{each.ledger.topic} {each.ledger.partition:05d} {each.device.name}",
                {"device": lambda each: each.device.name,
                 "records": lambda each: each.device.records,
                 "missing": lambda each: each.device.window.missing,
                 "late": lambda each: each.device.window.late,
                 "duplicates": lambda each: each.device.window.duplicates,
                 "last_ms": lambda each: each.device.last_ms},
                query=DeviceQuery, need=EACH, own=True,
                summary="List devices, and what is missing of each.",
            ),
        ]  # fmt: skip

    def _readable(self, request: AdminRequest, topic: str) -> Iterator[Ledger]:
        may: dict[str, bool] = {}
        for ledger in self._keeper.ledgers():
            if topic in ("", ledger.topic):
                if ledger.topic not in may:
                    may[ledger.topic] = self._may_read(request, ledger.topic)
                if may[ledger.topic]:
                    yield ledger

    def _may_read(self, request: AdminRequest, topic: str) -> bool:
        resource = Resource("topic", topic)
        try:
            self._broker.authorize(request.principal, Operation.READ, resource, request.context)
        except LakeMQError:
            return False
        return True

    async def _partitions(self, request: AdminRequest) -> Sequence[Ledger]:
        return list(self._readable(request, expect(request.asked, LedgerQuery).topic))

    async def _partition_rows(
        self, ledgers: Sequence[Ledger], request: AdminRequest
    ) -> Sequence[LedgerRow | None]:
        return [self._partition_row(each) for each in ledgers]

    def _partition_row(self, ledger: Ledger) -> LedgerRow | None:
        table = ledger.table
        try:
            end = self._broker.partition(ledger.topic, ledger.partition).high_watermark
        except LakeMQError:  # another node leads it by now
            return None
        return LedgerRow(
            node=self._broker.node_id,
            topic=ledger.topic,
            partition=ledger.partition,
            rule=table.rule_text,
            devices=len(table.devices),
            records=table.records,
            lag=max(0, end - table.position),
            unread=table.skipped.unread,
            deleted=table.skipped.deleted,
            evicted=table.skipped.evicted,
        )

    async def _devices(self, request: AdminRequest) -> Sequence[_Counted]:
        asked = expect(request.asked, DeviceQuery)
        found: list[_Counted] = []
        for ledger in self._readable(request, asked.topic):
            if asked.device:
                one = ledger.table.devices.get(asked.device)
                found += [] if one is None else [_Counted(ledger, one)]
            else:
                found += [_Counted(ledger, each) for each in ledger.table.devices.values()]
        return found

    async def _device_rows(
        self, counted: Sequence[_Counted], request: AdminRequest
    ) -> Sequence[DeviceRow | None]:
        now_ms = self._now_ms()
        return [self._device_row(each.ledger, each.device, now_ms) for each in counted]

    def _device_row(self, ledger: Ledger, device: Device, now_ms: int) -> DeviceRow:
        window = device.window
        return DeviceRow(
            node=self._broker.node_id,
            topic=ledger.topic,
            partition=ledger.partition,
            device=device.name,
            records=device.records,
            missing=window.missing,
            gaps=window.gaps,
            late=window.late,
            duplicates=window.duplicates,
            strays=window.strays,
            restarts=window.restarts,
            last_number=ledger.table.last_number(device),
            first_ms=device.first_ms,
            last_ms=device.last_ms,
            newest_ms=device.newest_ms,
            overdue=ledger.table.overdue(device, now_ms),
            delay_ms=device.delay_ms,
            delay_max_ms=device.delay_max_ms,
            offset=device.offset,
        )
