"""MQTT 5 reason codes, the errors that carry them, and what 3.1.1 can say instead.

    MqttError                what ends a connection: a reason code and a sentence
    ├── MalformedPacket      bytes that are no packet (0x81)
    ├── PacketTooLarge       longer than this server takes (0x95)
    └── ProtocolError        a packet that may not come here, or not like this (0x82, ...)

Source: MQTT 5.0 section 2.4 (reason codes), MQTT 3.1.1 table 3.1 (connect return codes).
"""

from __future__ import annotations

import enum
from typing import Final

from lakemq.broker_core.api.errors import (
    BatchTooLarge,
    InterceptorFailed,
    LakeMQError,
    NotAuthenticated,
    NotAuthorized,
    StorageFull,
    UnknownMechanism,
    UnknownTopic,
)


class Reason(enum.IntEnum):
    """MQTT 5.0 table 2-6. Several names share a value; the packet tells them apart."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


FAILURE: Final = 0x80
"""Reason codes from here on are failures."""


class MqttError(Exception):
    """Ends the connection it happened on. `reason` is the code that an MQTT 5 client gets."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class MalformedPacket(MqttError):
    """Bytes that are no packet (0x81)."""

    def __init__(self, text: str) -> None:
        super().__init__(Reason.MALFORMED_PACKET, text)


class PacketTooLarge(MqttError):
    """A packet that is longer than this server takes (0x95)."""

    def __init__(self, text: str) -> None:
        super().__init__(Reason.PACKET_TOO_LARGE, text)


class ProtocolError(MqttError):
    """A packet that may not come here, or not like this (0x82, or the reason given)."""

    def __init__(self, text: str, reason: Reason = Reason.PROTOCOL_ERROR) -> None:
        super().__init__(reason, text)


_RETURN_CODES: Final = {
    Reason.UNSUPPORTED_PROTOCOL_VERSION: 1,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: 2,
    Reason.BAD_USER_NAME_OR_PASSWORD: 4,
    Reason.BAD_AUTHENTICATION_METHOD: 4,
    Reason.NOT_AUTHORIZED: 5,
    Reason.BANNED: 5,
}


def return_code(reason: Reason) -> int:
    """CONNACK return code of 3.1 and 3.1.1; what they cannot say is `3`, server unavailable."""
    return 0 if reason < FAILURE else _RETURN_CODES.get(reason, 3)


_IN_DISCONNECT: Final = {
    Reason.BAD_USER_NAME_OR_PASSWORD: Reason.NOT_AUTHORIZED,
    Reason.SERVER_UNAVAILABLE: Reason.SERVER_BUSY,
    Reason.BANNED: Reason.ADMINISTRATIVE_ACTION,
}


def disconnect_reason(reason: Reason) -> Reason:
    """What DISCONNECT says in place of what only CONNACK may say (MQTT 5.0 table 2-6)."""
    return _IN_DISCONNECT.get(reason, reason)


_IN_CONNACK: Final = {
    Reason.SESSION_TAKEN_OVER: Reason.SERVER_BUSY,
    Reason.KEEP_ALIVE_TIMEOUT: Reason.SERVER_BUSY,
    Reason.SERVER_SHUTTING_DOWN: Reason.SERVER_UNAVAILABLE,
    Reason.ADMINISTRATIVE_ACTION: Reason.SERVER_UNAVAILABLE,
    Reason.MAXIMUM_CONNECT_TIME: Reason.SERVER_BUSY,
}
CONNACK_REASONS: Final = frozenset(
    {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F}
)
"""What CONNACK may say [MQTT-3.2.2-8]."""


def connack_reason(reason: Reason) -> Reason:
    """What CONNACK says in place of what only DISCONNECT may say (MQTT 5.0 table 2-6)."""
    reason = _IN_CONNACK.get(reason, reason)
    return reason if reason in CONNACK_REASONS else Reason.UNSPECIFIED_ERROR


def publish_reason(error: LakeMQError) -> Reason:
    """What PUBACK or PUBREC says when a publish was not stored."""
    if isinstance(error, NotAuthorized):
        return Reason.NOT_AUTHORIZED
    if isinstance(error, StorageFull | BatchTooLarge):
        return Reason.QUOTA_EXCEEDED
    if isinstance(error, UnknownTopic):
        return Reason.TOPIC_NAME_INVALID
    broken = error.retriable or isinstance(error, InterceptorFailed)
    return Reason.IMPLEMENTATION_ERROR if broken else Reason.UNSPECIFIED_ERROR


def connect_reason(error: LakeMQError) -> Reason:
    """What CONNACK says when a client was not let in."""
    if isinstance(error, UnknownMechanism):
        return Reason.BAD_AUTHENTICATION_METHOD
    if isinstance(error, NotAuthenticated):
        return Reason.BAD_USER_NAME_OR_PASSWORD
    if isinstance(error, NotAuthorized):
        return Reason.NOT_AUTHORIZED
    return Reason.SERVER_UNAVAILABLE
