"""How delayed publishes come into the hub and leave it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from lakemq.broker_core.api.records.headers import decode_headers
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.state.internal_topics import DELAYED
from lakemq.broker_core.api.types import AccessContext, Operation
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.routing.delayed import (
    AGAIN_MS,
    Delayed,
    Leaving,
    read_delayed,
)
from lakemq.plugins.mqtt.state.questions import AuthorizationPending
from lakemq.plugins.mqtt.state.records import delayed_header, parse_headers
from lakemq.plugins.mqtt.state.sessions import Positions
from lakemq.plugins.mqtt.state.snapshots import read_positions
from lakemq.plugins.mqtt.wire.messages import Message, Place

if TYPE_CHECKING:
    from lakemq.plugins.mqtt.routing.hub import Hub

POSITIONS_KEY: Final = b""
"""Key of the record that tells below which positions removals are complete."""
RELEASES_MAX: Final = 1000
"""Publishes that leave in one go; others come between."""


def heard(
    hub: Hub,
    offset: int,
    key: bytes,
    value: bytes | None,
    headers: bytes,
    *,
    recovering: bool = False,
) -> None:
    """Take the next record of the topic of delayed publishes; None: it was removed. Raises
    BadSnapshot, CorruptBatch, UnicodeDecodeError."""
    delays = hub.delays
    if key == POSITIONS_KEY:
        if value is not None:
            delays.kept_positions = read_positions(value)
        return
    name = key.decode()
    if value is None:
        delays.gone(name)
        return
    if not delays.is_known(name):
        one = read_delayed(name, value)
        one.principal = hub.same_principal(one.principal)
        delays.add(one)
        delays.schedule(one)
    held = delays.get(name)
    if held is None:
        return
    held.stored = True
    if headers:
        meta = parse_headers(decode_headers(headers))
        place = Place(DELAYED, 0, offset)
        message = Message("", b"", 2, False, 0, origin=meta.origin, place=place)
        delays.receipts.setdefault(held.client_id, {})[name] = (message, meta)
        hub.note_stored(message, meta, recovering=recovering)


def note_received(hub: Hub, client_id: str) -> None:
    """A session has come here: it learns which of its QoS 2 publishes wait to be published."""
    for message, meta in hub.delays.receipts.get(client_id, {}).values():
        hub.note_stored(message, meta, recovering=True)


def positions_to_keep(hub: Hub, ends: Positions) -> Positions:
    """Below which every delayed publish that was published is removed, or known to be. `ends`:
    where partitions ended before the first publish of this node."""
    here = hub.delays.floor if hub.delays.floor is not None else hub.positions
    return {**ends, **here, **hub.delays.unread}


def scan_from(hub: Hub, key: tuple[str, int], end: int) -> int:
    """Where to look in a partition that ends at `end` for what was published and is not removed; at
    its end: there is nothing."""
    kept = hub.delays.kept_positions
    if not hub.delays or kept is None or not any(topic == key[0] for topic, _ in kept):
        return end  # the topic is bound since then
    return min(end, kept.get(key, 0))


def release_due(hub: Hub, now_ms: int) -> bool:
    """Publish what is due, where it is this node that does. True: there may be more."""
    delays = hub.delays
    due = delays.take(now_ms, RELEASES_MAX) if delays.ready and delays.may_publish() else []
    for one in due:
        _release(hub, one, now_ms)
    return len(due) == RELEASES_MAX


def _release(hub: Hub, one: Delayed, now_ms: int) -> None:
    delays, packet = hub.delays, one.packet
    if not (delays.leads and delays.may_publish()):
        delays.schedule(one)  # for whenever this node leads again
        return
    context = AccessContext("mqtt", one.client_id, qos=packet.qos, retain=packet.retain)
    try:
        allowed = hub.is_for_clients(packet.topic) and hub.allowed(
            one.principal, Operation.WRITE, packet.topic, context
        )
    except AuthorizationPending as unanswered:
        hub.outbox.questions.append((unanswered.question, partial(_release, hub, one)))
        return
    if not allowed:
        delays.refused += 1
        delays.end(one.key)
        return
    binding = hub.binding(packet.topic)
    if binding is not None and binding.takes(packet.qos):
        if delays.unread and _is_unread(hub, binding, one):
            delays.schedule(one, now_ms + AGAIN_MS)
            return
        # The record that it becomes names it: what is found with its key is not published again.
        mark = delayed_header(one.key) if delays.keeps else b""
        delays.begin(one, hub.positions)
        hub.publish_for(packet, one.client_id, one.principal, now_ms, Leaving(delays, one), mark)
        return
    # No record under its name would tell after a crash that it was published: so its own record is
    # removed first, and a crash in between loses it rather than repeating it.
    delays.end(one.key)
    delays.leaving.append(one)
    if hub.ledger is None:
        release_removed(hub, hub.delays.take_leaving(), now_ms)


def _is_unread(hub: Hub, binding: Binding, one: Delayed) -> bool:
    """Whether it may be in its partition already."""
    key = (one.client_id if binding.key_is_client_id else one.packet.topic).encode()
    partitions = sum(topic == binding.topic for topic, _ in hub.positions) or 1
    return (binding.topic, partition_of(key, partitions)) in hub.delays.unread


def release_removed(hub: Hub, leaving: list[Delayed], now_ms: int) -> None:
    """Records of publishes that go through memory alone are removed: let them go."""
    for one in leaving:
        hub.delays.published += 1
        hub.publish_for(one.packet, one.client_id, one.principal, now_ms)
