"""Conditional requests (RFC 9110, 8.8.3 and 13.1.1): entity tags, and what `If-Match` says."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from lakemq.plugins.admin.api.problems import Problem

_ITEM: Final = re.compile(r'[ \t]*((?:W/)?"[^"\x00-\x20\x7f]*")?[ \t]*(?:,|$)')
"""One of a list, or nothing before a comma."""


def tag_of(body: bytes) -> str:
    """The strong tag of a representation: of all its bytes."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def check_match(if_match: str, tag: str | None) -> None:
    """`if_match`: the header's value, empty where none came; `tag`: of the resource as it is, None
    where there is none. Raises Problem: 412; 400: no list of tags."""
    if not if_match or (if_match.strip() == "*" and tag is not None):
        return
    # A weak tag begins with W/ and so equals no strong one.
    if if_match.strip() == "*" or tag not in _tags(if_match):
        raise Problem(
            412, "PRECONDITION_FAILED",
            "it is not, or no longer, as it was when it had the tag of If-Match: nothing was done; "
            "GET it again and decide again",
        )  # fmt: skip


def _tags(text: str) -> set[str]:
    """Raises Problem."""
    found, position = set[str](), 0
    while position < len(text):
        item = _ITEM.match(text, position)
        if item is None:
            raise Problem(
                400, "INVALID_REQUEST",
                f'If-Match is {text[:100]!r}; it takes * or tags in quotes like "0a1b", by commas',
            )  # fmt: skip
        if item[1]:
            found.add(item[1])
        position = item.end()
    return found
