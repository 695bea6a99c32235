"""PUBACK, PUBREC, PUBREL and PUBCOMP, as they come from a client: alone, or several together.

Source: MQTT 5.0 sections 3.4 to 3.7, 4.3 (QoS).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.state.delivery import Delivery
from lakemq.plugins.mqtt.wire.encoding import PUBCOMP, PUBREL
from lakemq.plugins.mqtt.wire.messages import Place
from lakemq.plugins.mqtt.wire.packets import V5, Acknowledgement, AcknowledgementRun, PacketType
from lakemq.plugins.mqtt.wire.reasons import FAILURE, ProtocolError, Reason

_AWAITED: Final = {
    (1, False): (PacketType.PUBACK, PacketType.PUBREL),
    (2, False): (PacketType.PUBREC, PacketType.PUBREL),
    (2, True): (PacketType.PUBREC, PacketType.PUBCOMP, PacketType.PUBREL),
}
"""What a client may send under the packet identifier of a publish to it, by its QoS and whether its
PUBREC came. PUBREL is about the client's own publish of that identifier."""


def acknowledgement(connection: Connection, packet: Acknowledgement, now_ms: int) -> None:
    """PUBACK, PUBREC, PUBREL or PUBCOMP from the client."""
    session = connection.session
    assert session is not None
    outbound, packet_id = session.outbound, packet.packet_id
    delivery = outbound.inflight.get(packet_id)
    if delivery is not None and (delivery.qos != 1 or packet.type is not PacketType.PUBACK):
        _check_kind(delivery, packet.type)
    match packet.type:
        case PacketType.PUBACK | PacketType.PUBCOMP:
            outbound.acknowledge(packet_id, connection, now_ms)
        # It counts as delivered and is never sent again [MQTT-4.4.0-2].
        case PacketType.PUBREC if packet.reason >= FAILURE:
            outbound.acknowledge(packet_id, connection, now_ms)
        case PacketType.PUBREC:
            # Unknown identifier: 3.1.1 has no reason code for it, and a client that waits for
            # PUBREL would wait forever.
            if not _received(connection, (packet_id,), now_ms):
                if connection.version < V5:
                    connection.write_acks(PUBREL, (packet_id,))
                else:
                    _say(connection, PacketType.PUBREL, packet_id)
        case _:
            _release(connection, packet_id, now_ms)


def acknowledgements(connection: Connection, packet: AcknowledgementRun, now_ms: int) -> None:
    """As `acknowledgement` of each."""
    session, packet_ids, done = connection.session, packet.packet_ids, 0
    assert session is not None
    connection.traffic.packets_received += len(packet_ids) - 1
    match packet.type:
        case PacketType.PUBREC:
            done = _received(connection, packet_ids, now_ms)
        case PacketType.PUBREL:
            done = _released(connection, packet_ids, now_ms)
        case _:
            completes = packet.type is PacketType.PUBCOMP
            wrong = session.outbound.acknowledge_run(
                packet_ids, connection, now_ms, completes=completes
            )
            if wrong is not None:
                _check_kind(wrong, packet.type)
            return
    for packet_id in packet_ids[done:]:
        acknowledgement(connection, Acknowledgement(packet.type, packet_id), now_ms)


def _check_kind(delivery: Delivery, answer: PacketType) -> None:
    if answer not in _AWAITED[delivery.qos, delivery.released]:
        raise ProtocolError(f"{answer.name} for a publish at QoS {delivery.qos}")


def _received(connection: Connection, packet_ids: Sequence[int], now_ms: int) -> int:
    """PUBREC: answered up to the first that is not about a publish that waits for it; how many."""
    session = connection.session
    assert session is not None
    count = session.outbound.received(packet_ids)
    if count:
        # PUBREL follows the durable note of PUBREC: a crash in between would otherwise send the
        # PUBLISH again that PUBREL has already released [MQTT-4.3.3-6].
        known = packet_ids[:count]
        session.keep(connection, lambda _: connection.write_acks(PUBREL, known), now_ms)
    return count


def _release(connection: Connection, packet_id: int, now_ms: int) -> None:
    """PUBREL, of whatever publish."""
    if _released(connection, (packet_id,), now_ms):
        return
    session = connection.session
    assert session is not None
    if packet_id in session.incoming:
        raise ProtocolError("PUBREL came before PUBREC was sent")
    # 3.1.1 has no such reason: a plain PUBCOMP ends the exchange.
    if connection.version == V5:
        _say(connection, PacketType.PUBCOMP, packet_id)
    else:
        session.keep(connection, lambda _: connection.write_acks(PUBCOMP, (packet_id,)), now_ms)


def _released(connection: Connection, packet_ids: Sequence[int], now_ms: int) -> int:
    """PUBREL: the packet identifiers are free again [MQTT-4.3.3-11], up to the first that had no
    PUBREC; how many. That is kept before PUBCOMP: else a crash would make the next publish under
    such an identifier look like the old one sent again."""
    session, inflow, count = connection.session, connection.inflow, 0
    assert session is not None
    incoming, released = session.incoming, session.released
    for packet_id in packet_ids:
        place = incoming.get(packet_id)
        if not isinstance(place, Place):
            break
        del incoming[packet_id]
        # `released` outlives the identifier: after a crash records are read again that the session
        # had seen, and those below it are not taken for unreleased ones (`Hub.note_stored`).
        partition = place[:2]
        if place.offset >= released.get(partition, 0):
            released[partition] = place.offset + 1
        inflow.qos_2.discard(packet_id)
        count += 1
    if count:
        known = packet_ids[:count]
        session.keep(connection, lambda _: connection.write_acks(PUBCOMP, known), now_ms)
    return count


def _say(connection: Connection, packet: PacketType, packet_id: int) -> None:
    connection.send(Acknowledgement(packet, packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND))
