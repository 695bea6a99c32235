"""Which topic names cross a bridge, and what they are renamed to on the other side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lakemq.broker_core.api.topic_filters import filters_overlap, matches
from lakemq.plugins.mqtt.bridge.topic_names import check_name

_REMEMBERED_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class Rule:
    """Names `local_prefix + x` here are `remote_prefix + x` there, for every x that the filter
    matches."""

    outgoing: bool
    incoming: bool
    topic_filter: str
    local_prefix: str
    remote_prefix: str
    qos: int
    topic: str
    """The topic whose records go out, or that takes what comes in."""

    @property
    def local_filter(self) -> str:
        """The filter with the local prefix."""
        return self.local_prefix + self.topic_filter

    @property
    def remote_filter(self) -> str:
        """The filter with the remote prefix."""
        return self.remote_prefix + self.topic_filter


class Target(NamedTuple):
    """Where a name leads on the other side."""

    name: str
    qos: int
    topic: str


class Rules:
    """The rules of one link. The first that matches counts."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._outgoing = [rule for rule in rules if rule.outgoing]
        self._incoming = [rule for rule in rules if rule.incoming]
        self._out: dict[tuple[str, str], Target | None] = {}
        self._in: dict[str, Target | None] = {}

    @property
    def topics_out(self) -> list[str]:
        """Topics whose records may go out."""
        return list(dict.fromkeys(rule.topic for rule in self._outgoing))

    @property
    def topics_in(self) -> list[str]:
        """Topics that take what comes in."""
        return list(dict.fromkeys(rule.topic for rule in self._incoming))

    @property
    def subscriptions(self) -> list[tuple[str, int]]:
        """What to ask the remote broker for: filters with the highest QoS asked for each."""
        wanted: dict[str, int] = {}
        for rule in self._incoming:
            wanted[rule.remote_filter] = max(rule.qos, wanted.get(rule.remote_filter, 0))
        return list(wanted.items())

    @property
    def sends_exactly_once(self) -> bool:
        """Whether anything goes out with QoS 2."""
        return any(rule.qos == 2 for rule in self._outgoing)

    @property
    def exactly_once(self) -> bool:
        """Whether anything comes in with QoS 2."""
        return any(rule.qos == 2 for rule in self._incoming)

    def echoes(self) -> list[tuple[Rule, Rule]]:
        """Pairs of (outgoing, incoming) rules where what goes out may be asked for again."""
        return [
            (out, back)
            for out in self._outgoing
            for back in self._incoming
            if filters_overlap(out.remote_filter, back.remote_filter)
        ]

    def remote(self, topic: str, name: str) -> Target | None:
        """Where a record of a topic goes; None: it stays here."""
        key = (topic, name)
        if key not in self._out:
            if len(self._out) >= _REMEMBERED_MAX:
                self._out.clear()
            self._out[key] = self._mapped(self._outgoing, name, topic)
        return self._out[key]

    def local(self, name: str) -> Target | None:
        """Where a publish of the remote broker goes; None: no rule subscribes to it."""
        if name not in self._in:
            if len(self._in) >= _REMEMBERED_MAX:
                self._in.clear()
            self._in[name] = self._mapped(self._incoming, name, None)
        return self._in[name]

    def _mapped(self, rules: Sequence[Rule], name: str, topic: str | None) -> Target | None:
        try:
            check_name(name)
        except ValueError:
            return None
        for rule in rules:
            here, there = rule.local_prefix, rule.remote_prefix
            if topic is None:
                here, there = there, here
            elif topic != rule.topic:
                continue
            rest = name.removeprefix(here)
            if rest and name.startswith(here) and matches(rule.topic_filter, rest):
                return Target(there + rest, rule.qos, rule.topic)
        return None
