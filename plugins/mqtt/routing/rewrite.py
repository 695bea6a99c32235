"""Topic rewrite: names and filters of clients -> those that the broker works with.

A rule's filter says what it takes; `$1`, `$2`, ... in its target stand for what the wildcards took,
in order (`#` takes all remaining levels). No regular expressions: a client's name costs one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """One rule: where it applies and what it makes of a name."""

    source: str
    """Topic filter: `old/+/state/#`."""
    target: str
    """`new/$1/$2`."""
    publish: bool = True
    subscribe: bool = True

    def apply(self, text: str) -> str | None:
        """The rewritten name or filter; None: the rule does not take it."""
        taken = _taken(self.source.split("/"), text.split("/"))
        if taken is None:
            return None
        levels = []
        for level in self.target.split("/"):
            number = level[1:]
            if level.startswith("$") and number.isdigit() and 0 < int(number) <= len(taken):
                levels += taken[int(number) - 1]
            else:
                levels.append(level)
        return "/".join(levels)


def _taken(pattern: list[str], levels: list[str]) -> list[list[str]] | None:
    """What each wildcard of the pattern takes of the levels; None: no match."""
    # As in matching [MQTT-4.7.2-1].
    if levels[0].startswith("$") and pattern[0] in ("+", "#"):
        return None
    taken: list[list[str]] = []
    for place, level in enumerate(pattern):
        if level == "#":
            taken.append(levels[place:])
            return taken
        # `#` in a client's filter stands for any number of levels, which one `+` cannot take.
        if place >= len(levels) or (level == "+" and levels[place] == "#"):
            return None
        if level == "+":
            taken.append([levels[place]])
        elif level != levels[place]:
            return None
    return taken if len(levels) == len(pattern) else None


def rewritten(rules: Sequence[RewriteRule], text: str, *, subscribing: bool) -> str:
    """`text` after the first rule that takes it; as it is if none does."""
    for rule in rules:
        if rule.subscribe if subscribing else rule.publish:
            found = rule.apply(text)
            if found is not None:
                return found
    return text
