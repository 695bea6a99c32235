"""One thing on a page of its own: what is known of it, and what may be done with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from lakemq.plugins.admin.dashboard.rendering import shown
from lakemq.plugins.admin.dashboard.tables import Column, Row


@dataclass(frozen=True)
class Action:
    """A form that changes the thing."""

    label: str
    """Of its button."""
    to: str
    """Path that it is sent to."""
    needs: str
    """The right, as it is said where it is missing: `alter group:readers`."""
    allowed: bool
    says: str = ""
    """What it does."""
    confirm: str = ""
    """Name that must be typed; empty: none."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Sent with it, hidden."""


def facts_of(columns: Sequence[Column], row: Row) -> list[tuple[str, str | Markup]]:
    """(label, value) of each column."""
    return [(each.label, shown(each.of(row), each.kind)) for each in columns]


def confirmed(form: Mapping[str, Any], name: str) -> bool:
    """Whether the name was typed that the form asks for."""
    return bool(form.get("confirm", "") == name)
