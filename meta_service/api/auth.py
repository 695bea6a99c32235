"""Who may do what, as the catalog keeps it: users, ACL rules, quotas.

The catalog keeps and hands out; what a rule means is decided by the broker. Passwords are never
here, only what they can be checked against.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

EntryKind = Literal["user", "rule", "quota"]
RESOURCE_KINDS: Final = (
    "topic", "topic_name", "group", "cluster", "sink", "transaction", "schema",
)  # fmt: skip
"""Kinds of resources that rules are about. A rule about another kind would be about nothing."""
_OLDER_KINDS: Final = {"transactional_id": "transaction"}


def canonical_kind(kind: str) -> str:
    """The kind by its present name."""
    return _OLDER_KINDS.get(kind, kind)


def kind_complaint(kind: str) -> str:
    """What is wrong with a rule's kind of resource, in words; empty: nothing."""
    if canonical_kind(kind) in RESOURCE_KINDS:
        return ""
    near = difflib.get_close_matches(kind.lower(), RESOURCE_KINDS, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(RESOURCE_KINDS)}"
    return f"kind of resource {kind!r}; {hint}"


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a SCRAM exchange is checked against (RFC 5802, section 3)."""

    mechanism: str
    """`SCRAM-SHA-256` or `SCRAM-SHA-512`."""
    salt: bytes = field(repr=False)
    iterations: int
    """4,096 to 1,000,000."""
    stored_key: bytes = field(repr=False)
    """As long as the hash: 32 or 64 bytes."""
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class User:
    """A principal that can authenticate; not without `scram` or `password_hash`."""

    name: str
    """1 to 249 characters, no control characters."""
    roles: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    disabled: bool = False
    scram: tuple[ScramCredential, ...] = ()
    """At most one of each mechanism."""
    password_hash: str = field(default="", repr=False)
    """In argon2's own encoding, `$argon2id$...`; empty: none."""
    revision: int = 0
    """Of its last change; set by the catalog."""


@dataclass(frozen=True, slots=True)
class AclRule:
    """Allows or denies an operation on resources."""

    rule_id: str
    """1 to 249 letters, digits, '.', '_' or '-'; putting the same one again replaces the rule."""
    principal: str
    """`user:NAME`, `role:NAME`, `anonymous`, or `*` for all principals."""
    effect: str
    """`allow` or `deny`."""
    operation: str
    """`read`, `write`, ... as the broker names them, or `*`."""
    resource: str
    """Kind: one of `RESOURCE_KINDS`, or `*`."""
    pattern: str
    """Which of that kind; `%c` and `%u` stand for the client id and the user's name."""
    pattern_type: str = "literal"
    """`literal` (`*` alone is any), `prefixed`, or `filter` (an MQTT topic filter). A literal
    `topic_name` is that filter alone, not what it matches."""
    qos: tuple[int, ...] = ()
    """Only for these; empty: for any."""
    retain: bool | None = None
    """Only with, or only without the retain flag; None: either."""
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Quota:
    """What a principal may use; None: no limit."""

    principal: str
    """As in a rule; `*` is for each principal that has no quota of its own."""
    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None
    requests_per_s: int | None = None
    records_per_s: int | None = None
    connections: int | None = None
    revision: int = 0


Entry = User | AclRule | Quota


@dataclass(frozen=True, slots=True)
class AuthSnapshot:
    """All of it. Watch from `revision + 1` and nothing is missed."""

    revision: int
    users: tuple[User, ...]
    rules: tuple[AclRule, ...]
    quotas: tuple[Quota, ...]


@dataclass(frozen=True, slots=True)
class AuthChange:
    """One entry was put, or deleted (`entry` is None)."""

    revision: int
    kind: EntryKind
    name: str
    """The user's name, the rule's id, or the quota's principal."""
    entry: Entry | None


class AuthCopy:
    """A local copy of all users, rules and quotas, to decide from without asking."""

    def __init__(self) -> None:
        self.revision = 0
        """Everything up to it is here."""
        self.users: dict[str, User] = {}
        self.rules: dict[str, AclRule] = {}
        self.quotas: dict[str, Quota] = {}
        self._of: dict[EntryKind, dict[str, Any]] = {
            "user": self.users,
            "rule": self.rules,
            "quota": self.quotas,
        }

    def load(self, snapshot: AuthSnapshot) -> None:
        """Replace the copy by a snapshot."""
        for entries in self._of.values():
            entries.clear()
        self.users.update((user.name, user) for user in snapshot.users)
        self.rules.update((rule.rule_id, rule) for rule in snapshot.rules)
        self.quotas.update((quota.principal, quota) for quota in snapshot.quotas)
        self.revision = snapshot.revision

    def update(self, change: AuthChange) -> None:
        """Take over one change; they come in the order of their revisions."""
        if change.entry is None:
            self._of[change.kind].pop(change.name, None)
        else:
            self._of[change.kind][change.name] = change.entry
        self.revision = change.revision


class AuthPort(Protocol):
    """Part of `MetaClient`.

    Puts and deletes with `expected_revision` change nothing and raise CompareFailed unless the
    entry's `revision` is that one; 0: there is no such entry. They return the new revision.
    """

    async def put_user(self, user: User, *, expected_revision: int | None = None) -> int:
        """Create or replace a user. Raises CompareFailed, InvalidArgument."""

    async def put_rule(self, rule: AclRule, *, expected_revision: int | None = None) -> int:
        """Create or replace an ACL rule. Raises CompareFailed, InvalidArgument."""

    async def put_quota(self, quota: Quota, *, expected_revision: int | None = None) -> int:
        """Create or replace a quota. Raises CompareFailed, InvalidArgument."""

    async def delete_user(self, name: str, *, expected_revision: int | None = None) -> int:
        """Raises NotFound. Rules and quotas that name the user stay."""

    async def delete_rule(self, rule_id: str, *, expected_revision: int | None = None) -> int:
        """Raises NotFound."""

    async def delete_quota(self, principal: str, *, expected_revision: int | None = None) -> int:
        """Raises NotFound."""

    async def user(self, name: str) -> User | None:
        """None: there is no such user."""

    async def users(self) -> Sequence[User]:
        """All users by name."""

    async def rules(self) -> Sequence[AclRule]:
        """All ACL rules by id."""

    async def quotas(self) -> Sequence[Quota]:
        """All quotas by principal."""

    async def auth(self) -> AuthSnapshot:
        """All of it; `watch_auth(snapshot.revision + 1)` goes on without gap."""

    def watch_auth(self, start_revision: int) -> AsyncIterator[AuthChange]:
        """Changes from that revision on, no gap, no repeat. Raises Compacted."""

    def follow_auth(self, copy: AuthCopy) -> AsyncIterator[AuthChange | None]:
        """Keep a copy up to date for as long as the iterator is read.

        Gives None when the copy was loaded whole (first, and again if the watch fell so far behind
        that its history was compacted), else the change that was just taken into it. A failure of
        the way to the MetaService leaves the copy as it was.
        """
