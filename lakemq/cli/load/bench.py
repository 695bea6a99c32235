"""`lakemq bench`: how quickly does this broker acknowledge?"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import ssl
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import typer

from lakemq.broker_core.api.command_line import (
    BrokerOptions,
    ExitCode,
    fail,
    is_json,
    option_groups,
    print_json,
    print_table,
    progress,
    secret,
)
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.cli.load.open_loop import IN_FLIGHT_MAX, Outcome, offer, percentile

_TOPIC: Final = "lakemq-bench-"
_HEADINGS: Final = (
    "protocol", "offered", "acknowledged", "failed", "unanswered", "acknowledged/s", "p50 ms",
    "p99 ms", "max ms",
)  # fmt: skip


class Ack(StrEnum):
    """As the SDK has them."""

    MEMORY = "memory"
    LEADER = "leader"
    REPLICATED = "replicated"


_MEANINGS: Final = {
    "memory": "in the leader's memory, lost if it dies before the next flush",
    "leader": "on the leader's disk: written and fsynced",
    "replicated": "on the disks of all in-sync replicas",
}
_PUBACK: Final = "on disk, written and fsynced (on as many nodes as the topic's acks_min says)"


@dataclass(frozen=True)
class _Load:
    rate: float
    seconds: float
    value: bytes


@option_groups
def bench(
    rate: Annotated[
        float, typer.Option("--rate", "-r", min=1, max=100_000, help="Records a second.")
    ] = 1000.0,
    seconds: Annotated[
        float, typer.Option("--seconds", "-s", min=0.1, max=3600, help="How long, each protocol.")
    ] = 5.0,
    size: Annotated[
        int, typer.Option("--size", min=1, max=1_000_000, help="Bytes of each value.")
    ] = 100,
    acks: Annotated[Ack, typer.Option("--acks", help="What acks of the native protocol mean.")] = (
        Ack.LEADER
    ),
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Default: the broker's.")
    ] = None,
    mqtt: Annotated[
        str, typer.Option("--mqtt", metavar="HOST:PORT", help="MQTT with QoS 1, too.")
    ] = "",
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the topic.")] = False,
    *,
    broker: BrokerOptions,
) -> None:
    """Offer records to a broker at a fixed rate, and show how long its acks take.

    Records go to a topic made for it, which is deleted afterwards. What --mqtt publishes is stored
    where the broker's bindings say, and stays there as long as that topic keeps records. Latencies
    count from when a record was due: a broker or this client that falls behind shows in them. Exit
    code 1: records failed, or were not acknowledged within 10 s.
    """
    load = _Load(rate, seconds, os.urandom(size))
    host, _, port = mqtt.rpartition(":")
    if mqtt and not (host and port.isdecimal()):
        fail(f"--mqtt {mqtt!r}: it takes HOST:PORT", ExitCode.USAGE)
    name = _TOPIC + secrets.token_hex(4)
    outcomes: dict[str, Outcome] = {}
    meanings = {"native": _MEANINGS[acks]}
    try:
        outcomes["native"] = _run(_native(broker, name, partitions, acks, load, keep))
        if mqtt:
            outcomes["mqtt"] = _run(_mqtt(host, int(port), broker, name, load))
            meanings["mqtt"] = _PUBACK
    except (LakeMQError, OSError) as error:
        fail(str(error) or "no answer in time", cause=error)
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None
    _print(outcomes, meanings, name, load)
    if any(each.failed or each.unanswered for each in outcomes.values()):
        raise typer.Exit(ExitCode.FAILED)


def _run(work: Coroutine[None, None, Outcome]) -> Outcome:
    """SIGTERM cancels it, as Ctrl-C does, so that the topic is deleted: where Ctrl-C is ignored, as
    by what a script runs in the background, too."""

    async def ended_by_sigterm() -> Outcome:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    return asyncio.run(ended_by_sigterm())


async def _native(
    broker: BrokerOptions, name: str, partitions: int | None, acks: Ack, load: _Load, keep: bool
) -> Outcome:
    from lakemq.plugins.native.cli.connection import login_for, tls_of
    from lakemq.plugins.native.sdk import Client
    from lakemq.plugins.native.sdk.net.login import Login

    login = login_for(broker) or Login()
    async with Client(
        broker.bootstrap, timeout_s=10, tls=tls_of(broker), token=login.token,
        username=login.username, password=login.password, mechanism=login.mechanism,
    ) as client:  # fmt: skip
        made = asyncio.ensure_future(client.create_topic(name, partitions))
        try:
            await asyncio.shield(made)  # a signal does not leave a topic that is being made
            async with await client.producer(acks=acks, delivery_timeout_ms=10_000) as producer:
                await producer.send(name, load.value)  # connects, and learns where to
                return await offer(
                    lambda: producer.send(name, load.value), rate=load.rate, seconds=load.seconds
                )
        finally:
            await asyncio.wait({made})
            if not keep and not made.exception():
                await client.delete_topic(name)


async def _mqtt(host: str, port: int, broker: BrokerOptions, name: str, load: _Load) -> Outcome:
    from lakemq.cli.load.mqtt_publisher import MqttPublisher

    publisher = await MqttPublisher.connect(
        host.strip("[]"), port, name, tls=_tls(broker), username=broker.username,
        password=secret("PASSWORD") or "",
    )  # fmt: skip
    try:
        await publisher.publish(name, load.value)  # its topic is made if it is not there
        return await offer(
            lambda: publisher.publish(name, load.value), rate=load.rate, seconds=load.seconds,
            in_flight_max=min(IN_FLIGHT_MAX, publisher.receive_maximum),
        )  # fmt: skip
    finally:
        await publisher.close()


def _tls(broker: BrokerOptions) -> ssl.SSLContext | None:
    """As for the native protocol: where one of its files is named."""
    if not (broker.tls_ca or broker.tls_cert):
        return None
    context = ssl.create_default_context(cafile=broker.tls_ca or None)
    if broker.tls_cert:
        context.load_cert_chain(broker.tls_cert, broker.tls_key or None)
    return context


def _print(outcomes: dict[str, Outcome], meanings: dict[str, str], name: str, load: _Load) -> None:
    rows = []
    for protocol, found in outcomes.items():
        latencies = sorted(found.latencies_ms)
        worst = latencies[-1] if latencies else None
        shown = (percentile(latencies, 0.5), percentile(latencies, 0.99), worst)
        rows.append((
            protocol, found.offered, found.acknowledged, found.failed, found.unanswered,
            round(found.rate), *shown,
        ))  # fmt: skip
    if is_json():
        keys = [heading.replace(" ", "_").replace("/s", "_per_s") for heading in _HEADINGS]
        found_rows = [
            {**dict(zip(keys, row, strict=True)), "ack_means": meanings[str(row[0])],
             "problem": outcomes[str(row[0])].problem or None}
            for row in rows
        ]  # fmt: skip
        print_json({
            "topic": name, "rate": load.rate, "seconds": load.seconds, "bytes": len(load.value),
            "results": found_rows,
        })  # fmt: skip
        return
    print_table(_HEADINGS, rows)
    for protocol, meaning in meanings.items():
        typer.echo(f"{protocol}: an ack says that the record is {meaning}")
    for protocol, found in outcomes.items():
        if found.problem:
            progress(f"{protocol}: {found.problem}")
