"""MQTT topic names as a bridge needs them: which filter matches, what a name becomes. Pure.

Source: MQTT 3.1.1 section 4.7.
"""

from __future__ import annotations

from typing import Final

TEXT_BYTES_MAX: Final = 65_535


def check_filter(text: str) -> str:
    """The filter when it is well formed. ValueError says why not."""
    _check_text(text, "filter")
    levels = text.split("/")
    for place, level in enumerate(levels):
        if "#" in level and (level != "#" or place != len(levels) - 1):
            raise ValueError(f"filter {text!r}: # stands alone, as the last level")
        if "+" in level and level != "+":
            raise ValueError(f"filter {text!r}: + fills a whole level")
    return text


def check_name(text: str) -> str:
    """The topic name when clients may publish to it. ValueError says why not."""
    _check_text(text, "topic name")
    if "+" in text or "#" in text:
        raise ValueError(f"topic name {text[:64]!r} has a wildcard")
    return text


def check_prefix(text: str) -> str:
    """The prefix of names when it is one; it may be empty."""
    return check_name(text) if text else text


def _check_text(text: str, what: str) -> None:
    if not text:
        raise ValueError(f"{what} is empty")
    if "\0" in text:
        raise ValueError(f"{what} {text[:64]!r} holds U+0000")
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise ValueError(f"{what} is longer than {TEXT_BYTES_MAX} bytes")


def matches(topic_filter: str, name: str) -> bool:
    """Whether a filter matches a name; `$`-names hide from a leading wildcard [MQTT-4.7.2-1]."""
    if name[0] == "$" and topic_filter[0] in "+#":
        return False
    levels, pattern = name.split("/"), topic_filter.split("/")
    for place, level in enumerate(pattern):
        if level == "#":
            return True
        if place == len(levels) or level not in ("+", levels[place]):
            return False
    return len(levels) == len(pattern)


def overlap(one: str, other: str) -> bool:
    """Whether some name is matched by both filters."""
    left, right = one.split("/"), other.split("/")
    for mine, theirs in zip(left, right, strict=False):
        if "#" in (mine, theirs):
            return True
        if mine != theirs and "+" not in (mine, theirs):
            return False
    if len(left) == len(right):
        return True
    longer, size = (left, len(right)) if len(left) > len(right) else (right, len(left))
    return longer[size] == "#"
