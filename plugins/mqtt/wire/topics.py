"""Topic names and topic filters as MQTT clients send them: what is valid, in reason codes.

Source: MQTT 5.0 section 4.7 (names and filters) and 4.8.2 (shared subscriptions).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lakemq.broker_core.api.topic_filters import filter_fault, has_wildcard
from lakemq.plugins.mqtt.wire.packets import V5
from lakemq.plugins.mqtt.wire.primitives import STRING_MAX_BYTES, text_of
from lakemq.plugins.mqtt.wire.reasons import MalformedPacket, ProtocolError, Reason

LEVELS_MAX: Final = 256
"""Levels that a topic name or filter may have, where nothing else is said."""
SHARE: Final = "$share"
_SHARED: Final = SHARE + "/"
EXCLUSIVE: Final = "$exclusive/"
"""In front of a filter that one session alone may subscribe to."""
REPLAY: Final = "$replay/"
"""`$replay/<start>/<filter>`: a subscription that begins in the past."""
REMEMBERED_CHARS_MAX: Final = 512
"""Longer topic names are parsed each time, so that caches stay small."""


class TopicTooDeep(ProtocolError):
    """A valid topic name of more levels than this server takes (0x90)."""

    def __init__(self, name: str, levels_max: int) -> None:
        super().__init__(f"topic name has more than {levels_max} levels", Reason.TOPIC_NAME_INVALID)
        self.name = name


def check_topic_name(name: str, levels_max: int | None = None) -> str:
    """The name, when clients may publish to it. ProtocolError (0x90) says why not."""
    if not name:
        raise ProtocolError("topic name is empty", Reason.TOPIC_NAME_INVALID)
    if has_wildcard(name):
        raise ProtocolError("topic name holds a wildcard", Reason.TOPIC_NAME_INVALID)
    if levels_max is not None and name.count("/") >= levels_max:
        raise TopicTooDeep(name, levels_max)
    return name


def check_topic_filter(topic_filter: str, levels_max: int | None = None) -> str:
    """The filter, when it is well formed [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1]."""
    if not topic_filter:
        raise ProtocolError("topic filter is empty", Reason.TOPIC_FILTER_INVALID)
    if levels_max is not None and topic_filter.count("/") >= levels_max:
        raise ProtocolError(
            f"topic filter has more than {levels_max} levels", Reason.TOPIC_FILTER_INVALID
        )
    if fault := filter_fault(topic_filter):
        raise ProtocolError(fault, Reason.TOPIC_FILTER_INVALID)
    return topic_filter


def refuse_malformed(text: str, version: int) -> None:
    """MalformedPacket for a filter of SUBSCRIBE or UNSUBSCRIBE that is empty [MQTT-4.7.3-1], or, in
    version 5, begins with `$share/` without a share name and a filter behind it
    [MQTT-4.8.2-1] [MQTT-4.8.2-2]."""
    if not text:
        raise MalformedPacket("topic filter is empty")
    if version >= V5 and text.startswith(_SHARED):
        group, _, topic_filter = text[len(_SHARED) :].partition("/")
        if not group or not topic_filter or has_wildcard(group):
            raise MalformedPacket("a shared filter is $share/<name>/<filter>")


class Address(NamedTuple):
    """A subscription's filter, taken apart: `$share/<group>/<filter>` or the filter alone."""

    topic_filter: str
    group: str | None = None


def parse_filter(text: str) -> Address:
    """Check a filter as it stands in SUBSCRIBE and take the share name off it.

    A share name has at least one character and no `/`, `+`, `#` [MQTT-4.8.2-1] [MQTT-4.8.2-2].
    """
    if not (text == SHARE or text.startswith(SHARE + "/")):
        return Address(check_topic_filter(text))
    _, _, rest = text.partition("/")
    group, slash, topic_filter = rest.partition("/")
    if not group or not slash or not topic_filter or has_wildcard(group):
        raise ProtocolError(
            "a shared filter is $share/<name>/<filter>", Reason.TOPIC_FILTER_INVALID
        )
    return Address(check_topic_filter(topic_filter), group)


def split_replay(text: str) -> tuple[str, str]:
    """Start and filter of `$replay/<start>/<filter>`. ProtocolError (0x8F)."""
    start, slash, rest = text.removeprefix(REPLAY).partition("/")
    if not slash or rest.startswith((SHARE + "/", EXCLUSIVE, REPLAY)):
        raise ProtocolError("a replay is $replay/<start>/<filter>", Reason.TOPIC_FILTER_INVALID)
    return start, rest


class TopicNames(dict[bytes, str]):
    """Topic names by their bytes: each distinct name is decoded and checked once.

    `names[raw]` raises MalformedPacket or ProtocolError for what is no topic name, TopicTooDeep for
    one of more than `levels_max` levels. Forgets
    everything when it holds `entries_max` names, so it stays bounded whatever clients send. The
    empty name is valid here: it stands for a topic alias.
    """

    def __init__(self, entries_max: int = 65_536, levels_max: int = LEVELS_MAX) -> None:
        super().__init__()
        self._entries_max = entries_max
        self._levels_max = levels_max

    def check(self, name: str) -> str:
        """The name, when it is valid. ProtocolError (0x90)."""
        return check_topic_name(name, self._levels_max)

    def __missing__(self, raw: bytes) -> str:
        if len(raw) > STRING_MAX_BYTES:  # a record's key may be longer than a packet holds
            raise ProtocolError("topic name is too long", Reason.TOPIC_NAME_INVALID)
        name = text_of(raw)
        if name:
            self.check(name)
        if len(raw) <= REMEMBERED_CHARS_MAX:
            if len(self) >= self._entries_max:
                self.clear()
            self[raw] = name
        return name
