"""Topic names, filters and prefixes in a bridge's settings and in what crosses it."""

from __future__ import annotations

from typing import Final

from lakemq.broker_core.api.topic_filters import filter_fault, has_wildcard

TEXT_MAX_BYTES: Final = 65_535


def check_filter(text: str) -> str:
    """The filter when it is well formed. ValueError says why not."""
    _check_text(text, "filter")
    if fault := filter_fault(text):
        raise ValueError(f"filter {text[:64]!r}: {fault}")
    return text


def check_name(text: str) -> str:
    """The topic name when clients may publish to it. ValueError says why not."""
    _check_text(text, "topic name")
    if has_wildcard(text):
        raise ValueError(f"topic name {text[:64]!r} holds a wildcard")
    return text


def check_prefix(text: str) -> str:
    """The prefix of names when it is one; it may be empty."""
    return check_name(text) if text else text


def _check_text(text: str, what: str) -> None:
    if not text:
        raise ValueError(f"{what} is empty")
    if "\0" in text:
        raise ValueError(f"{what} {text[:64]!r} holds U+0000")
    if len(text.encode()) > TEXT_MAX_BYTES:
        raise ValueError(f"{what} is longer than {TEXT_MAX_BYTES} bytes")
