"""MQTT topic filters: which are well formed, which topic names they match, how their sets relate.

The one implementation for subscriptions, bridges and access rules. Which other limits a name or
filter has, and which error is raised, is the caller's: the functions here say what is wrong.

Source: MQTT 5.0 section 4.7. `$`-names hide from a leading wildcard [MQTT-4.7.2-1], and `#` also
matches the level above it [section 4.7.1.2].
"""

from __future__ import annotations

from typing import Final

Levels = tuple[str, ...]
"""A filter's levels; a topic name is a filter without wildcards."""
_EVERYTHING: Final = ("#",)


def filter_fault(topic_filter: str) -> str:
    """What breaks the rules for wildcards [MQTT-4.7.1-1] [MQTT-4.7.1-2]; empty: nothing does.

    An empty filter and U+0000, which MQTT forbids in any string, are the caller's to refuse.
    """
    levels = topic_filter.split("/")
    last = len(levels) - 1
    for index, level in enumerate(levels):
        if "#" in level and (level != "#" or index != last):
            return "# must be a whole level, and the last"
        if "+" in level and level != "+":
            return "+ must be a whole level"
    return ""


def has_wildcard(text: str) -> bool:
    """Whether a text holds `+` or `#`, so is no topic name [MQTT-3.3.2-2]."""
    return "+" in text or "#" in text


def is_filter(text: str) -> bool:
    """Whether a text is a well-formed topic filter [MQTT-4.7.3-1] [MQTT-4.7.3-2]."""
    return bool(text) and "\0" not in text and not filter_fault(text)


def matches(topic_filter: str, name: str) -> bool:
    """Whether a filter matches a topic name; both are valid, so neither is empty."""
    # [MQTT-4.7.2-1]
    if name[0] == "$" and topic_filter[0] in "+#":
        return False
    levels = name.split("/")
    pattern = topic_filter.split("/")
    for index, level in enumerate(pattern):
        if level == "#":
            return True
        if index == len(levels) or level not in ("+", levels[index]):
            return False
    return len(levels) == len(pattern)


def filters_overlap(one: str, other: str) -> bool:
    """Whether some topic name is matched by both filters."""
    return overlaps(levels_of(one), levels_of(other))


def levels_of(text: str) -> Levels:
    """A filter's levels, to be compared many times; `+/#` becomes `#`, since every name has one
    level or more."""
    levels = tuple(text.split("/"))
    return _EVERYTHING if levels == ("+", "#") else levels


def covers(wide: Levels, narrow: Levels) -> bool:
    """Whether `wide` matches every topic name that `narrow` matches."""
    if _hides(wide, narrow):
        return False
    for index, level in enumerate(wide):
        if level == "#":
            return True
        # A `#` in `narrow` matches deeper names than any single level of `wide` does.
        if index == len(narrow) or narrow[index] == "#":
            return False
        if level not in ("+", narrow[index]):
            return False
    return len(wide) == len(narrow)


def overlaps(one: Levels, other: Levels) -> bool:
    """Whether some topic name is matched by both."""
    if _hides(one, other) or _hides(other, one):
        return False
    for mine, its in zip(one, other, strict=False):
        if "#" in (mine, its):
            return True
        if mine != its and "+" not in (mine, its):
            return False
    shorter, longer = sorted((one, other), key=len)
    # `#` also matches the level above it (MQTT 5, 4.7.1.2): `a/#` and `a` overlap.
    return len(shorter) == len(longer) or longer[len(shorter) :] == _EVERYTHING


def _hides(wildcard: Levels, named: Levels) -> bool:
    """Whether a leading wildcard keeps `wildcard` from the `$` names that `named` is about."""
    return wildcard[0] in ("+", "#") and named[0].startswith("$")
