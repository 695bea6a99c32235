"""How sealed segments are read where an object store holds them. Pure; secrets are not in repr."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lakemq.spark_plugin.errors import OptionError

STORE_PREFIX: Final = "tieredStore."
TIERED_OPTIONS: Final = ("tiered", f"{STORE_PREFIX}url")
MODES: Final = ("auto", "never", "always")
_VARIABLE: Final = "LAKEMQ_TIERED"
_STORE_VARIABLE: Final = f"{_VARIABLE}_STORE_"


@dataclass(frozen=True)
class Tiered:
    """The default reads from the store what it can, and the rest through the broker."""

    mode: str = "auto"
    """`auto`; `never`: all through the broker; `always`: an object that can't be read is an
    error."""
    url: str = ""
    """Where executors find what the broker's `tiering_url` names; empty: under the same URL."""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """For the store, such as `endpoint`, `region`, `secret_access_key`."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise OptionError(f"option tiered is {self.mode!r}; it takes {' or '.join(MODES)}")


def is_store_option(name: str) -> bool:
    """Whether it is handed to the store as it is."""
    return name.lower().startswith(STORE_PREFIX.lower()) and len(name) > len(STORE_PREFIX)


def parse_tiered(options: Mapping[str, str]) -> Tiered:
    """Options with lower-case names -> Tiered. OptionError."""
    given = {
        name[len(STORE_PREFIX) :]: str(value).strip()
        for name, value in sorted(options.items())
        if is_store_option(name)
    }
    mode = str(options.get("tiered", "auto")).strip().lower()
    return Tiered(mode, given.pop("url", ""), tuple(given.items()))


def tiered_of(environment: Mapping[str, str]) -> Tiered:
    """LAKEMQ_TIERED, LAKEMQ_TIERED_STORE_URL; LAKEMQ_TIERED_STORE_<NAME> is the option <name>."""
    options = {
        f"{STORE_PREFIX}{name[len(_STORE_VARIABLE) :]}".lower(): value
        for name, value in environment.items()
        if name.startswith(_STORE_VARIABLE) and len(name) > len(_STORE_VARIABLE)
    }
    return parse_tiered({**options, "tiered": environment.get(_VARIABLE, "") or "auto"})
