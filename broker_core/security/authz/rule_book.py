"""All rules of a node: those of its file, of its rules file, of the MetaService."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from lakemq.broker_core.api.access import AccessContext, Operation, Principal, Resource, Rule
from lakemq.broker_core.configuration.config import parse_config
from lakemq.broker_core.security.authz.rules import RuleSet, reason_of
from lakemq.broker_core.security.settings import RulesFile, SecuritySettings
from lakemq.broker_core.security.watched_file import watched_file

_log = logging.getLogger(__name__)
OPERATOR_ROLES: Final = tuple(
    Rule((f"role:{role}",), operations, "any", "*", rule_id=f"built-in:{role}")
    for role, operations in (
        ("viewer", ("describe",)),
        ("reader", ("describe",)),
        ("operator", ("describe", "alter")),
        ("admin", ("all",)),
    )
)
"""What roles of these names may do without further rules. They say nothing where everything is
allowed anyway, so they count where the default is to deny."""


class RuleBook:
    """Implements the `Authorizer` port: rules, after those who may do everything anyway."""

    def __init__(
        self,
        settings: SecuritySettings,
        changed: Callable[[], None],
    ) -> None:
        self._changed = changed
        self._take(settings)
        self._file = (
            watched_file(settings.rules_file, _reader(settings.rules_file))
            if settings.rules_file
            else None
        )
        self._kept: Mapping[str, Rule] = {}
        self._warned = False
        self.rules = self._joined()

    def _take(self, settings: SecuritySettings) -> None:
        self._settings = settings
        self._written = [rule for each in settings.rules for rule in each.rules()]
        self._admins = frozenset(settings.admins)

    def reconfigure(self, settings: SecuritySettings) -> None:
        """Other rules of the file, and other administrators; `rules_file` stays."""
        self._take(settings)
        self.replace(self._kept)

    def _joined(self) -> RuleSet:
        in_file = self._file.current() if self._file is not None else ()
        built_in = () if self._settings.unmatched_allows() else OPERATOR_ROLES
        return RuleSet(
            [*built_in, *self._written, *in_file, *self._kept.values()],
            unmatched_allows=self._settings.unmatched_allows(),
        )

    def refresh(self) -> None:
        """Look whether the rules file has changed."""
        if self._file is not None and self._file.refresh():
            self.replace(self._kept)

    def replace(self, kept: Mapping[str, Rule]) -> None:
        """Rules that the MetaService keeps, by id."""
        self._kept = dict(kept)
        self.rules = self._joined()
        self._warn()
        self._changed()

    def _warn(self) -> None:
        """Say it when it begins to be so, not at every change."""
        void = self.rules.void()
        if void and not self._warned:
            _log.warning("%s", void)
        self._warned = bool(void)

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext,
    ) -> bool:
        """Whether the principal may; administrators may do everything."""
        if self._admins and self.is_admin(principal):
            return True
        return self.rules.allows(principal, operation, resource, context)

    def reason(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext,
    ) -> str:
        """Which rule decides, in words."""
        if self.is_admin(principal):
            return "an administrator (security.admins)"
        return reason_of(self.rules.verdict(principal, operation, resource, context)[1])

    def is_admin(self, principal: Principal) -> bool:
        """Whether `security.admins` names the user or one of its roles."""
        if principal.kind != "user":
            return False
        names = (f"user:{principal.name}", *(f"role:{role}" for role in principal.roles))
        return not self._admins.isdisjoint(names)


def _reader(path: str) -> Callable[[bytes], Iterable[Rule]]:
    def read(data: bytes) -> Iterable[Rule]:
        source = parse_config(Path(path).name, data.decode(), {})
        file = source.section((), RulesFile)
        return tuple(rule for each in file.rules for rule in each.rules())

    return read
