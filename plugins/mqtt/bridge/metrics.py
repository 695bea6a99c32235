"""Metrics of the bridges, read from plain numbers on demand; the admin API tells the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.broker_core.api.administration.routes import (
    AdminListing,
    AdminRequest,
    Answer,
    AnyRoute,
    OwnPageQuery,
)

if TYPE_CHECKING:
    from lakemq.plugins.mqtt.bridge.runner import Bridge

Read = Callable[["Bridge"], int]
Bridges = Callable[[], Sequence["Bridge"]]
"""Those that this node runs now."""

GROWING: dict[str, tuple[Read, str, str]] = {
    "forwarded": (
        lambda one: one.state.outbox.sent,
        "{record}",
        "Records that the remote broker has.",
    ),
    "received": (
        lambda one: one.state.inbox.received,
        "{message}",
        "Publishes of the remote broker stored here.",
    ),
    "repeated": (
        lambda one: one.state.inbox.repeated,
        "{message}",
        "QoS 2 publishes that came again, stored once.",
    ),
    "refused": (
        lambda one: one.state.receiver.refused,
        "{message}",
        "Publishes that can never be stored.",
    ),
    "unasked": (
        lambda one: one.state.receiver.unasked,
        "{message}",
        "Publishes that no rule takes.",
    ),
    "lost": (
        lambda one: one.state.source.lost,
        "{record}",
        "Records deleted here before they went out.",
    ),
    "unreadable": (
        lambda one: one.state.source.unreadable,
        "{record}",
        "Records without a readable topic name.",
    ),
    "connects": (lambda one: one.connects, "{connection}", "Links that were made."),
    "failures": (
        lambda one: one.failures,
        "{failure}",
        "Attempts that failed and links that ended.",
    ),
}
LEVELS: dict[str, tuple[Read, str, str]] = {
    "connected": (lambda one: int(one.connected), "", "1 while the link stands."),
    "lag": (lambda one: one.state.source.lag, "{record}", "Records that may still have to go out."),
    "inflight": (
        lambda one: len(one.state.outbox),
        "{message}",
        "Publishes that the remote broker has not answered.",
    ),
}


def register_metrics(meter: Meter, bridges: Bridges) -> None:
    """One instrument per number, one series per link that this node runs."""
    for name, (read, unit, description) in GROWING.items():
        meter.create_observable_counter(
            f"lakemq.bridge.{name}", [_callback(read, bridges)], unit, description
        )
    for name, (read, unit, description) in LEVELS.items():
        meter.create_observable_gauge(
            f"lakemq.bridge.{name}", [_callback(read, bridges)], unit, description
        )


def _callback(read: Read, bridges: Bridges) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [
        Observation(read(one), {"link": one.state.settings.name}) for one in bridges()
    ]


class BridgeRow(Answer):
    """A link to a remote MQTT broker."""

    node: str
    """Runs it."""
    link: str
    url: str
    client_id: str
    """At the remote broker."""
    connected: bool
    lag: int
    """Records that may still have to go out."""
    inflight: int
    """Publishes that the remote broker has not answered."""
    counts: dict[str, int]
    """Since this node runs it: `forwarded`, `received`, `refused`, `lost` and so on."""


class BridgeRoutes:
    """`/api/v1/bridges`."""

    def __init__(self, node_id: str, bridges: Bridges) -> None:
        self._node_id = node_id
        self._bridges = bridges

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        return [
            AdminListing(
                "bridges", BridgeRow, self._all, self._rows, lambda each: each.state.settings.name,
                {
                    "link": lambda each: each.state.settings.name,
                    "lag": lambda each: LEVELS["lag"][0](each),
                },
                query=OwnPageQuery, own=True, summary="List bridges to remote MQTT brokers.",
            )
        ]  # fmt: skip

    async def _all(self, request: AdminRequest) -> Sequence[Bridge]:
        return self._bridges()

    async def _rows(self, bridges: Sequence[Bridge], request: AdminRequest) -> Sequence[BridgeRow]:
        return [
            BridgeRow(
                node=self._node_id,
                link=each.state.settings.name,
                url=each.state.settings.url,
                client_id=each.state.client_id,
                connected=each.connected,
                lag=LEVELS["lag"][0](each),
                inflight=LEVELS["inflight"][0](each),
                counts={name: read(each) for name, (read, *_) in GROWING.items()},
            )
            for each in bridges
        ]


class Unlinked:
    """Implements the `Listener` port. It needs no amqtt, and lets the admin API of this node tell
    the links of all nodes."""

    name = "bridge"

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id

    async def start(self) -> None:
        """Nothing is started."""

    def addresses(self) -> Sequence[str]:
        """None."""
        return []

    def admin_routes(self) -> Sequence[AnyRoute]:
        """The list of links; no row is this node's."""
        return BridgeRoutes(self._node_id, lambda: ()).routes()

    async def stop(self) -> None:
        """Nothing was started."""
