"""Users with passwords, and the lines of a password file.

    # name, then in any order: roles, argon2 hash, SCRAM keys; separated by blanks
    ann roles=operator,auditor $argon2id$v=19$m=19456,t=2,p=1$...$...
    bob SCRAM-SHA-256$15000:<salt>$<stored key>:<server key>

The form of SCRAM keys is PostgreSQL's (base64).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lakemq.broker_core.api.access import Principal
from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.security.authn.scram import (
    HASHES,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramKeys,
)

NAME_LENGTH_MAX: Final = 249
_SCRAM: Final = re.compile(r"(SCRAM-SHA-(?:256|512))\$(\d{1,7}):([^$:]+)\$([^$:]+):([^$:]+)")
_ROLE: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class UserRecord:
    """What is kept of a user: nothing that one could log in with."""

    name: str
    password_hash: str = field(default="", repr=False)
    """`$argon2id$...`; empty: none."""
    scram: tuple[ScramKeys, ...] = ()
    roles: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    disabled: bool = False

    def principal(self) -> Principal:
        """The principal of a client that logged in as this user."""
        roles = tuple(sorted(self.roles))
        return Principal(self.name, "user", self.attributes, roles, credential=self.credential())

    def credential(self) -> str:
        """Stands for the password: another one with each change of it."""
        parts = [self.password_hash.encode()]
        for keys in self.scram:
            parts += [keys.mechanism.encode(), keys.salt, keys.stored_key]
        digest = hashlib.sha256()
        for part in parts:
            # With lengths: otherwise other parts could join to the same bytes.
            digest.update(len(part).to_bytes(4, "big") + part)
        return digest.hexdigest()

    def keys_for(self, mechanism: str) -> ScramKeys | None:
        """The stored keys for a SCRAM mechanism; None: there are none."""
        return next((keys for keys in self.scram if keys.mechanism == mechanism), None)


def check_user_name(name: str) -> None:
    """Raises InvalidRequest, telling the rule that is broken."""
    if not 1 <= len(name) <= NAME_LENGTH_MAX:
        raise InvalidRequest(f"a user name has 1 to {NAME_LENGTH_MAX} characters, not {len(name)}")
    if name[0] == "#" or not name.isprintable() or any(each.isspace() for each in name):
        raise InvalidRequest(f"user name {name!r}: no blanks, no control characters, no # first")


def check_roles(roles: Sequence[str]) -> None:
    """Raises InvalidRequest, naming the role."""
    for role in roles:
        if not _ROLE.fullmatch(role):
            raise InvalidRequest(f"role {role!r}: letters, digits, '.', '_', '-' are allowed")


def read_users(text: str) -> dict[str, UserRecord]:
    """A password file's users by name. Raises InvalidRequest, naming the line without its
    secrets."""
    users: dict[str, UserRecord] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            user = _read_user(line)
        except InvalidRequest as error:
            raise InvalidRequest(f"line {number}: {error}") from None
        if user.name in users:
            raise InvalidRequest(f"line {number}: user {user.name} stands in two lines")
        users[user.name] = user
    return users


def _read_user(line: str) -> UserRecord:
    name, *parts = line.split()
    check_user_name(name)
    argon2, roles, scram = "", (), []  # type: str, tuple[str, ...], list[ScramKeys]
    for place, part in enumerate(parts, 2):
        if part.startswith("$argon2"):
            argon2 = part
        elif part.startswith("roles="):
            roles = tuple(part.removeprefix("roles=").split(","))
            check_roles(roles)
        elif part.startswith("SCRAM-"):
            scram.append(_read_scram(part))
        else:
            raise InvalidRequest(
                f"user {name}: part {place} is neither roles=..., an argon2 hash nor SCRAM keys"
            )
    if len({keys.mechanism for keys in scram}) < len(scram):
        raise InvalidRequest(f"user {name}: two SCRAM keys of one kind")
    return UserRecord(name, argon2, tuple(scram), roles)


def _read_scram(part: str) -> ScramKeys:
    match = _SCRAM.fullmatch(part)
    if match is None:
        raise InvalidRequest("SCRAM keys are SCRAM-SHA-256$<iterations>:<salt>$<key>:<key>")
    mechanism, iterations, *texts = match.groups()
    try:
        salt, stored, server = (base64.b64decode(each, validate=True) for each in texts)
    except ValueError:  # binascii.Error, and what is not ASCII
        raise InvalidRequest("SCRAM keys are not base64") from None
    size = {"sha256": 32, "sha512": 64}[HASHES[mechanism]]
    if len(stored) != size or len(server) != size or not salt:
        raise InvalidRequest(f"SCRAM keys of {mechanism} have {size} bytes")
    if not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
        raise InvalidRequest(f"SCRAM iterations are {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return ScramKeys(mechanism, salt, int(iterations), stored, server)


def user_line(user: UserRecord) -> str:
    """Inverse of what `read_users` takes from one line."""
    parts = [user.name]
    if user.roles:
        parts.append(f"roles={','.join(user.roles)}")
    if user.password_hash:
        parts.append(user.password_hash)
    for keys in user.scram:
        salt, stored, server = (
            base64.b64encode(each).decode()
            for each in (keys.salt, keys.stored_key, keys.server_key)
        )
        parts.append(f"{keys.mechanism}${keys.iterations}:{salt}${stored}:{server}")
    return " ".join(parts)
