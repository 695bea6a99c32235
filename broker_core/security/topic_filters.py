"""How sets of topic names that two topic filters match lie to each other. Pure.

A filter is a tuple of levels; a topic name is a filter without wildcards. Source: MQTT 5.0 section
4.7 (`#` also matches the level above it; a leading wildcard matches no name that begins with `$`).
"""

from __future__ import annotations

from typing import Final

Levels = tuple[str, ...]
_EVERYTHING: Final = ("#",)


def levels_of(text: str) -> Levels:
    """A filter's levels; `+/#` is `#`, since every name has one level or more."""
    levels = tuple(text.split("/"))
    return _EVERYTHING if levels == ("+", "#") else levels


def is_filter(text: str) -> bool:
    """Whether a text is a well-formed topic filter [MQTT-4.7.1-1] [MQTT-4.7.1-2]."""
    levels = text.split("/")
    if not text or "\0" in text:
        return False
    return all(
        level == "+" or (level == "#" and place == len(levels) - 1) or not set(level) & {"+", "#"}
        for place, level in enumerate(levels)
    )


def covers(wide: Levels, narrow: Levels) -> bool:
    """Whether `wide` matches every topic name that `narrow` matches."""
    if _hides(wide, narrow):
        return False
    for place, level in enumerate(wide):
        if level == "#":
            return True
        if place == len(narrow) or narrow[place] == "#":
            return False
        if level not in ("+", narrow[place]):
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
    return len(shorter) == len(longer) or longer[len(shorter) :] == _EVERYTHING


def _hides(wildcard: Levels, named: Levels) -> bool:
    """Whether a leading wildcard keeps `wildcard` from the `$` names that `named` is about."""
    return wildcard[0] in ("+", "#") and named[0].startswith("$")
