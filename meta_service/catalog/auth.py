"""Users, ACL rules and quotas in the catalog."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, NamedTuple

from lakemq.meta_service.api.auth import AclRule, Entry, EntryKind, Quota, ScramCredential, User
from lakemq.meta_service.api.errors import InvalidArgument
from lakemq.meta_service.catalog.command_codec import (
    Command,
    check_blob,
    check_integer,
    check_items,
    check_mapping,
    check_name,
    check_text,
    command,
)
from lakemq.meta_service.catalog.entries import (
    DeleteEntry,
    PutEntry,
    check_choice,
    check_flag,
    check_label,
    check_limit,
    check_tuple,
    check_word,
)
from lakemq.meta_service.catalog.tables import unpack

AUTH_PREFIX: Final = b"\x00auth/"
USER_PREFIX: Final = AUTH_PREFIX + b"user/"
RULE_PREFIX: Final = AUTH_PREFIX + b"rule/"
QUOTA_PREFIX: Final = AUTH_PREFIX + b"quota/"
LEVEL: Final = 2
ROLES_MAX: Final = 64
ATTRIBUTES_MAX: Final = 64
HASH_BYTES: Final = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 1_000_000
_ARGON2: Final = re.compile(r"\$argon2id\$v=\d+\$[a-z0-9=,]{1,64}\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+")
_PRINCIPAL: Final = re.compile("(user|role):.+", re.DOTALL)


@command("auth.user+")
@dataclass(frozen=True, slots=True)
class PutUser(PutEntry):
    """Create or replace a user with its roles, attributes and credentials."""

    level: ClassVar[int] = LEVEL
    prefix: ClassVar[bytes] = USER_PREFIX
    what: ClassVar[str] = "user"

    def check_entry(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_label(self.name, "user.name")
        roles, attributes, disabled, scram, password_hash = check_items(self.body, "user", 5)
        check_tuple(roles, "user.roles", ROLES_MAX)
        for role in roles:
            check_label(role, "user.roles")
        check_mapping(attributes, "user.attributes", ATTRIBUTES_MAX)
        for name, value in attributes.items():
            check_label(name, "user.attributes")
            check_text(value, f"user.attributes.{name}", 1024)
        check_flag(disabled, "user.disabled")
        check_tuple(scram, "user.scram", len(HASH_BYTES))
        for credential in scram:
            _check_scram(credential)
        if len({credential[0] for credential in scram}) < len(scram):
            raise InvalidArgument("user.scram: has two credentials of one mechanism")
        _check_hash(password_hash)


def _check_scram(value: object) -> None:
    mechanism, salt, iterations, stored_key, server_key = check_items(value, "user.scram", 5)
    check_choice(mechanism, "user.scram.mechanism", tuple(HASH_BYTES))
    check_blob(salt, "user.scram.salt", 256)
    if len(salt) < 8:
        raise InvalidArgument("user.scram.salt: must have at least 8 bytes")
    check_integer(iterations, "user.scram.iterations", ITERATIONS_MIN, ITERATIONS_MAX)
    # StoredKey and ServerKey are as long as the mechanism's hash (RFC 5802, §3).
    size = HASH_BYTES[mechanism]
    for name, key in (("stored_key", stored_key), ("server_key", server_key)):
        if not isinstance(key, bytes) or len(key) != size:
            raise InvalidArgument(f"user.scram.{name}: must be {size} bytes for {mechanism}")


def _check_hash(value: object) -> None:
    """Only argon2's own encoding: a plain password put here by mistake is refused."""
    check_text(value, "user.password_hash", 512)
    if value and not _ARGON2.fullmatch(str(value)):
        raise InvalidArgument("user.password_hash: must be an encoded hash, $argon2id$...")


@command("auth.rule+")
@dataclass(frozen=True, slots=True)
class PutRule(PutEntry):
    """Create or replace an ACL rule."""

    level: ClassVar[int] = LEVEL
    prefix: ClassVar[bytes] = RULE_PREFIX
    what: ClassVar[str] = "ACL rule"

    def check_entry(self) -> None:
        """Raises InvalidArgument that names the field; operation and resource are checked for form
        alone."""
        check_name(self.name, "rule.rule_id")
        principal, effect, operation, resource, pattern, pattern_type, qos, retain = check_items(
            self.body, "rule", 8
        )
        check_principal(principal, "rule.principal")
        check_choice(effect, "rule.effect", ("allow", "deny"))
        check_word(operation, "rule.operation")
        check_word(resource, "rule.resource")
        check_label(pattern, "rule.pattern", 1024)
        check_choice(pattern_type, "rule.pattern_type", ("literal", "prefixed", "filter"))
        check_tuple(qos, "rule.qos", 3)
        for each in qos:
            check_integer(each, "rule.qos", 0, 2)
        if retain is not None:
            check_flag(retain, "rule.retain")


@command("auth.quota+")
@dataclass(frozen=True, slots=True)
class PutQuota(PutEntry):
    """Create or replace the quota of a principal; a limit of None is without limit."""

    level: ClassVar[int] = LEVEL
    prefix: ClassVar[bytes] = QUOTA_PREFIX
    what: ClassVar[str] = "quota of"

    def check_entry(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_principal(self.name, "quota.principal")
        names = (
            "bytes_in_per_s",
            "bytes_out_per_s",
            "requests_per_s",
            "records_per_s",
            "connections",
        )
        for name, value in zip(names, check_items(self.body, "quota", 5), strict=True):
            check_limit(value, f"quota.{name}")


def check_principal(value: object, what: str) -> None:
    """Raises InvalidArgument unless it is `user:NAME`, `role:NAME`, `anonymous` or `*`."""
    check_label(value, what, 254)
    if value not in ("*", "anonymous") and not _PRINCIPAL.fullmatch(str(value)):
        raise InvalidArgument(f"{what}: must be user:NAME, role:NAME, anonymous or *")


@command("auth.user-")
class DeleteUser(DeleteEntry, of=PutUser):
    """Delete a user."""


@command("auth.rule-")
class DeleteRule(DeleteEntry, of=PutRule):
    """Delete an ACL rule."""


@command("auth.quota-")
class DeleteQuota(DeleteEntry, of=PutQuota):
    """Delete a quota."""


class Kind(NamedTuple):
    """One kind of entry: its value, and its commands."""

    value: Callable[..., Entry]
    put: type[PutEntry]
    delete: type[DeleteEntry]


KINDS: Final[dict[EntryKind, Kind]] = {
    "user": Kind(User, PutUser, DeleteUser),
    "rule": Kind(AclRule, PutRule, DeleteRule),
    "quota": Kind(Quota, PutQuota, DeleteQuota),
}
"""An entry's first field is its name and its last one the revision; the body of its command, and of
its row, are the fields between, in their order."""


# ------------------------------------------------------------ values


def put_command(entry: Entry, expected_revision: int | None) -> Command:
    """The command that puts an entry."""
    put = next(kind.put for kind in KINDS.values() if type(entry) is kind.value)
    name, *body, _ = (getattr(entry, field.name) for field in fields(entry))
    return put(name, tuple(map(_packed, body)), expected_revision)


def _packed(value: Any) -> Any:
    """A field as it is stored: mappings by name, so that members store the same bytes."""
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    if isinstance(value, ScramCredential):
        return tuple(getattr(value, field.name) for field in fields(value))
    return tuple(map(_packed, value)) if isinstance(value, (tuple, list)) else value


def identify(key: bytes) -> tuple[EntryKind, str]:
    """(kind, name) of an entry by its key."""
    for name, kind in KINDS.items():
        if key.startswith(kind.put.prefix):
            return name, key[len(kind.put.prefix) :].decode()
    raise ValueError(f"{key!r} is not a key of an entry")


def decode_entry(key: bytes, value: bytes, revision: int) -> Entry:
    """`revision`: the row's `mod_revision`."""
    kind, name = identify(key)
    body: Any = unpack(value)
    if kind == "user":
        roles, attributes, disabled, scram, password_hash = body
        body = roles, attributes, disabled, tuple(map(_credential, scram)), password_hash
    return KINDS[kind].value(name, *body, revision)


def _credential(fields: Any) -> ScramCredential:
    return ScramCredential(*fields)
