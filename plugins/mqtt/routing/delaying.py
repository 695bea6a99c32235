"""How delayed publishes come into the hub and leave it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.records.headers import decode_headers
from lakemq.broker_core.api.types import AccessContext, Operation
from lakemq.plugins.mqtt.routing.delayed import (
    TOPIC,
    Delayed,
    Leaving,
    is_for_clients,
    read_delayed,
)
from lakemq.plugins.mqtt.state.questions import AuthorizationPending
from lakemq.plugins.mqtt.state.records import delayed_header, parse_headers
from lakemq.plugins.mqtt.state.snapshots import read_positions
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot
from lakemq.plugins.mqtt.wire.messages import Message, Place

if TYPE_CHECKING:
    from lakemq.plugins.mqtt.routing.hub import Hub

POSITIONS_KEY: Final = b""
"""Key of the record that tells below which positions removals are complete."""
RELEASES_MAX: Final = 1000
"""Publishes that leave in one go; others come between."""


class DelayRecovery:
    """Reads what the topic of delayed publishes holds, batch by batch."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._found: dict[bytes, tuple[Place, bytes]] = {}
        self._problems: list[tuple[Place, Exception]] = []

    def batch(self, opened: RecordBatch) -> None:
        """Take the next one, in offset order. Sessions must be there already: they learn which of
        their QoS 2 publishes are here."""
        found = self._found
        rows = zip(
            opened.offsets(), opened.keys(), opened.values(), opened.encoded_headers(), strict=True
        )
        for offset, key, value, headers in rows:
            if value is None:
                found.pop(key or b"", None)
                continue
            place = Place(TOPIC, 0, offset)
            found[key or b""] = (place, value)
            if headers:
                self._note(place, headers)

    def _note(self, place: Place, headers: bytes) -> None:
        try:
            meta = parse_headers(decode_headers(headers))
        except CorruptBatch as error:
            self._problems.append((place, error))
            return
        message = Message("", b"", 2, False, 0, origin=meta.origin, place=place)
        self._hub.note_stored(message, meta, recovering=True)

    def finish(self) -> list[tuple[Place, Exception]]:
        """Have all of it wait again; returns what is unreadable, and where."""
        delays, problems = self._hub.delays, self._problems
        for key, (place, value) in self._found.items():
            try:
                if key == POSITIONS_KEY:
                    delays.kept_positions = read_positions(value)
                    continue
                one = read_delayed(key.decode(), value)
            except (BadSnapshot, UnicodeDecodeError) as error:
                problems.append((place, error))
                continue
            one.principal = self._hub.same_principal(one.principal)
            delays.add(one)
            delays.schedule(one)
        return problems


def release_due(hub: Hub, now_ms: int) -> bool:
    """Publish what is due. True: there may be more."""
    due = hub.delays.take(now_ms, RELEASES_MAX) if hub.delays.ready else []
    for one in due:
        _release(hub, one, now_ms)
    return len(due) == RELEASES_MAX


def _release(hub: Hub, one: Delayed, now_ms: int) -> None:
    delays, packet = hub.delays, one.packet
    context = AccessContext("mqtt", one.client_id, qos=packet.qos, retain=packet.retain)
    try:
        allowed = is_for_clients(packet.topic) and hub.allowed(
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
        kept = hub.ledger is not None
        # The record that it becomes names it: `Hub.note_stored` removes the delayed one when it
        # sees that.
        mark = delayed_header(one.key) if kept else b""
        hub.publish_for(
            packet, one.client_id, one.principal, now_ms, Leaving(delays, one, kept), mark
        )
        return
    # No record under its name would tell after a crash that it was published: so its own record is
    # removed first, and a crash in between loses it rather than repeating it.
    delays.end(one.key)
    delays.leaving.append(one)
    if hub.ledger is None:
        release_removed(hub, hub.delays.take_leaving(), now_ms)


def release_removed(hub: Hub, leaving: list[Delayed], now_ms: int) -> None:
    """Records of publishes that go through memory alone are removed: let them go."""
    for one in leaving:
        hub.delays.published += 1
        hub.publish_for(one.packet, one.client_id, one.principal, now_ms)
