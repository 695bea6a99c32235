"""Rates per principal (bytes and records a second), enforced by delaying."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from lakemq.broker_core.api.access import Principal
from lakemq.broker_core.api.limits.rates import Bucket

PRINCIPALS_MAX: Final = 50_000
"""Principals whose use is remembered; the longest quiet are forgotten first."""


class Use(NamedTuple):
    """How much, in each dimension that can be limited."""

    bytes_in: int = 0
    bytes_out: int = 0
    records_in: int = 0
    records_out: int = 0


_WRITTEN: Final = (0, 2)
_READ: Final = (1, 3)
"""Places in `Use`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """A second's worth; None: no limit."""

    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None
    records_per_s: int | None = None
    """Written, and likewise read."""

    def rates(self) -> Use:
        """0: no limit."""
        records = self.records_per_s or 0
        return Use(self.bytes_in_per_s or 0, self.bytes_out_per_s or 0, records, records)


class Quotas:
    """Limits by `user:<name>`, `role:<name>`, `anonymous`, `any`, and who has used what."""

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self._rates: dict[str, Use] = {}
        self.limited = False
        """Whether there are any limits."""
        self.replace(limits)
        self._buckets: OrderedDict[tuple[str, str], list[Bucket | None]] = OrderedDict()
        """Of each principal, by place in `Use`; None: not limited until now."""
        self.waits_ms = 0
        """All waits that were asked for, together."""

    def replace(self, limits: Mapping[str, Limits]) -> None:
        """Other limits from now on; what was used stays used."""
        self._rates = {who: each.rates() for who, each in limits.items()}
        self.limited = bool(self._rates)

    def rates_of(self, principal: Principal) -> Use | None:
        """The most particular limits: its own, else of the first of its roles that has some, else
        those for everybody. None: no limits."""
        if principal.kind == "node":
            return None
        own = "anonymous" if principal.kind == "anonymous" else f"user:{principal.name}"
        for who in (own, *(f"role:{role}" for role in principal.roles), "any"):
            rates = self._rates.get(who)
            if rates is not None:
                return rates
        return None

    def charge(self, principal: Principal, use: Use, now_ms: int) -> int:
        """Note what was used; how long the principal has to wait before it may use more (ms) of
        the same direction: to read, if something was read, else to write."""
        if not self._rates:
            return 0
        rates = self.rates_of(principal)
        if rates is None:
            return 0
        key = (principal.kind, principal.name)
        buckets = self._buckets.get(key)
        if buckets is None:
            buckets = self._buckets[key] = [None] * len(use)
            if len(self._buckets) > PRINCIPALS_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        longest = 0.0
        asked = _READ if use.bytes_out or use.records_out else _WRITTEN
        for place in asked:
            if rates[place]:
                bucket = buckets[place]
                if bucket is None:
                    bucket = buckets[place] = Bucket(0, now_ms)
                bucket.per_second = rates[place]  # it may be another one since the last time
                longest = max(longest, bucket.pay(use[place], now_ms))
        wait_ms = int(longest)
        self.waits_ms += wait_ms
        return wait_ms
