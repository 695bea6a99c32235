"""Entries: named values of one kind, each put whole and compared by its revision.

Every kind has a prefix in the reserved part of the KV space, so entries have revisions, are
watched, cached and in snapshots like everything else. The name is the rest of the key; the row's
value is the MessagePack array `body`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from lakemq.meta_service.api.errors import CompareFailed, InvalidArgument, NotFound
from lakemq.meta_service.catalog.command_codec import Command, check_integer
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.tables import pack

LABEL_CHARACTERS_MAX: Final = 249
_CONTROL: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_WORD: Final = re.compile("[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class PutEntry(Command):
    """Base of the commands that put an entry whole."""

    prefix: ClassVar[bytes] = b""
    what: ClassVar[str] = ""
    """What the entry is called in errors."""

    name: str
    body: tuple[Any, ...]
    expected_revision: int | None
    """None: whatever is there; 0: nothing is."""

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_expected(self.expected_revision)
        self.check_entry()

    def check_entry(self) -> None:
        """Raises InvalidArgument that names the field."""
        raise NotImplementedError

    def key(self) -> bytes:
        """The entry's key in the KV space."""
        return self.prefix + self.name.encode()


@dataclass(frozen=True, slots=True)
class DeleteEntry(Command):
    """Base of the commands that delete an entry, `of` what another one puts."""

    prefix: ClassVar[bytes] = b""
    what: ClassVar[str] = ""

    name: str
    expected_revision: int | None

    def __init_subclass__(cls, of: type[PutEntry]) -> None:
        cls.level, cls.prefix, cls.what = of.level, of.prefix, of.what

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_expected(self.expected_revision)
        check_label(self.name, "name")

    def key(self) -> bytes:
        """The entry's key in the KV space."""
        return self.prefix + self.name.encode()


def put_entry(draft: Draft, command: PutEntry) -> Any:
    """Raises CompareFailed."""
    compare(draft, command.key(), command.expected_revision, f"{command.what} {command.name!r}")
    draft.put_row(command.key(), pack(command.body))
    return None


def delete_entry(draft: Draft, command: DeleteEntry) -> Any:
    """Raises NotFound, CompareFailed."""
    what = f"{command.what} {command.name!r}"
    if draft.row(command.key()) is None:
        raise NotFound(f"{what} does not exist")
    compare(draft, command.key(), command.expected_revision, what)
    draft.delete_row(command.key())
    return None


def compare(draft: Draft, key: bytes, expected_revision: int | None, what: str) -> None:
    """Raises CompareFailed unless the row was last changed by that revision."""
    if expected_revision is None:
        return
    row = draft.row(key)
    revision = row.mod_revision if row else 0
    if revision != expected_revision:
        is_now = f"was last changed by revision {revision}" if revision else "does not exist"
        raise CompareFailed(f"{what} {is_now}, expected was {expected_revision}")


# ------------------------------------------------------------ checks of single fields


def check_expected(value: object) -> None:
    """Raises InvalidArgument unless it is None or a revision."""
    if value is not None:
        check_integer(value, "expected_revision", 0, 2**63 - 1)


def check_label(value: object, what: str, characters_max: int = LABEL_CHARACTERS_MAX) -> None:
    """Text that names something: not empty, no control characters.

    By code points and not by `str.isprintable`, whose answer depends on Python's Unicode tables:
    members of different versions must decide alike.
    """
    if not isinstance(value, str) or not 0 < len(value) <= characters_max or _CONTROL.search(value):
        raise InvalidArgument(
            f"{what}: must be 1 to {characters_max} characters, none of them a control character"
        )


def check_word(value: object, what: str) -> None:
    """A word of the broker's, or `*`. Which ones there are is the broker's affair: the catalog
    would otherwise refuse on some members what others know."""
    if value != "*" and (not isinstance(value, str) or not _WORD.fullmatch(value)):
        raise InvalidArgument(f"{what}: must be '*' or a word of lower-case letters")


def check_choice(value: object, what: str, choices: tuple[object, ...]) -> None:
    """Raises InvalidArgument unless it is one of the choices."""
    if not any(value is choice or value == choice for choice in choices):
        raise InvalidArgument(f"{what}: must be one of {', '.join(map(str, choices))}")


def check_flag(value: object, what: str) -> None:
    """Raises InvalidArgument unless it is True or False."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{what}: must be true or false")


def check_tuple(value: object, what: str, count_max: int) -> None:
    """Raises InvalidArgument unless it is an array of at most `count_max` items."""
    if not isinstance(value, tuple) or len(value) > count_max:
        raise InvalidArgument(f"{what}: must be a list of at most {count_max}")


def check_limit(value: object, what: str) -> None:
    """Raises InvalidArgument unless it is None or a whole number from 0 to 2**53."""
    if value is not None:
        check_integer(value, what, 0, 2**53)
