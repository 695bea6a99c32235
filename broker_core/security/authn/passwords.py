"""Checks passwords off the event loop: argon2 takes tens of milliseconds and as many MiB.

A few threads do it. Above a bound of waiting logins further ones are refused as retriable, so that
a storm of logins neither stalls the broker nor fills its memory. Addresses take turns, and at the
bound the address with most waiting logins gives way. A password that was right before is accepted
without argon2, by a keyed hash (HMAC with a random key) that never leaves the process.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import ARGON2_VERSION

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.security.authn.scram import HASHES, ITERATIONS, ScramKeys, scram_keys
from lakemq.broker_core.security.authn.users import UserRecord
from lakemq.meta_service.api.fair_line import FairLine

PASSWORD_MAX_BYTES: Final = 4_096
_KNOWN_MAX: Final = 10_000
_HASHER: Final = PasswordHasher(
    time_cost=2, memory_cost=19 * 1024, parallelism=1, hash_len=32, salt_len=16, type=Type.ID
)
"""19 MiB, 2 passes, parallelism 1: the minimum of OWASP's cheat sheet for password storage."""


def password_hash(password: str) -> str:
    """`$argon2id$...` with a salt of its own. Slow on purpose."""
    return _HASHER.hash(password.encode())


def hash_of_no_password() -> str:
    """Takes as long to check as any other. Made of random bytes, which costs nothing: a start
    does not wait for it."""
    salt, digest = (
        base64.b64encode(secrets.token_bytes(size)).rstrip(b"=").decode()
        for size in (_HASHER.salt_len, _HASHER.hash_len)
    )
    costs = f"m={_HASHER.memory_cost},t={_HASHER.time_cost},p={_HASHER.parallelism}"
    return f"$argon2id$v={ARGON2_VERSION}${costs}${salt}${digest}"


def is_password_hash(text: str) -> bool:
    """Whether it is argon2's own encoding, of any of its kinds and costs."""
    try:
        _HASHER.check_needs_rehash(text)
    except InvalidHashError:
        return False
    return True


def verify(record: UserRecord, password: bytes) -> bool:
    """Whether that is the user's password. Slow on purpose."""
    if record.password_hash:
        try:
            return _HASHER.verify(record.password_hash, password)
        except (VerificationError, InvalidHashError):
            return False
    for keys in record.scram:
        try:
            text = password.decode()
        except UnicodeDecodeError:
            return False
        again = scram_keys(keys.mechanism, text, keys.salt, keys.iterations)
        return hmac.compare_digest(again.stored_key, keys.stored_key)
    return False


class _Job(NamedTuple):
    work: Callable[[], bool]
    outcome: asyncio.Future[bool]


def _too_many() -> Unavailable:
    return Unavailable("too many logins are waiting to be checked; try again")


class PasswordChecker:
    """A bounded number of threads that check passwords."""

    def __init__(self, threads: int, waiting_max: int) -> None:
        self._threads = threads
        self._waiting_max = waiting_max
        self._pool: ThreadPoolExecutor | None = None
        self._line: FairLine[_Job] = FairLine()
        self._running = 0
        self._secret = secrets.token_bytes(32)
        self._known: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        """(user, what its password is checked against) -> keyed hash of the right password."""
        self._dummy = UserRecord("", hash_of_no_password())
        self._closed = False
        self.hashed = 0
        self.refused = 0

    async def check(self, record: UserRecord | None, password: bytes, peer: str = "") -> bool:
        """Whether the password is right. Without a record it is wrong, and takes as long to check.
        `peer` takes turns with others (`peer_of`). Raises Unavailable when too many logins wait."""
        # Before any hashing: its cost would grow with what a stranger sends.
        if len(password) > PASSWORD_MAX_BYTES:
            return False
        if record is None:
            # The same work as for a real user, so that the time does not tell which users exist.
            await self._in_thread(lambda: verify(self._dummy, password), peer)
            return False
        place = (record.name, record.password_hash or repr([k.stored_key for k in record.scram]))
        # The stored form is part of it: after a change of password the old one is checked in full
        # and fails.
        mark = hmac.digest(self._secret, place[1].encode() + b"\0" + password, "sha256")
        known = self._known.get(place)
        if known is not None and hmac.compare_digest(known, mark):
            self._known.move_to_end(place)
            return True
        right = await self._in_thread(lambda: verify(record, password), peer)
        if right:
            self._known[place] = mark
            while len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        return right

    async def _in_thread(self, work: Callable[[], bool], peer: str) -> bool:
        if self._running + len(self._line) >= self._waiting_max:
            self.refused += 1
            displaced = self._line.give_way(peer)
            if displaced is None:
                raise _too_many()
            if not displaced.outcome.done():
                displaced.outcome.set_exception(_too_many())
        job = _Job(work, asyncio.get_running_loop().create_future())
        self._line.add(peer, job)
        self._begin()
        try:
            return await job.outcome
        finally:
            self._line.remove(peer, job)  # also when the caller was cancelled

    def _begin(self) -> None:
        """Start waiting jobs while a thread is free."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "lakemq-password")
        while self._running < self._threads and len(self._line):
            job = self._line.take()
            self._running += 1
            future = asyncio.get_running_loop().run_in_executor(self._pool, job.work)
            future.add_done_callback(partial(self._done, job))

    def _done(self, job: _Job, future: asyncio.Future[bool]) -> None:
        self._running -= 1
        self.hashed += 1
        if not self._closed:
            self._begin()
        if future.cancelled():
            job.outcome.cancel()
        elif (error := future.exception()) is not None:
            if not job.outcome.done():
                job.outcome.set_exception(error)
        elif not job.outcome.done():
            job.outcome.set_result(future.result())

    def close(self) -> None:
        """Refuse what waits and end the threads."""
        self._closed = True
        while len(self._line):
            outcome = self._line.take().outcome
            if not outcome.done():
                outcome.set_exception(Unavailable("the node is stopping"))
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def all_scram_keys(password: str, mechanisms: tuple[str, ...], iterations: int) -> list[ScramKeys]:
    """New keys for a password, with salts of their own. Slow on purpose."""
    return [
        scram_keys(mechanism, password, secrets.token_bytes(16), iterations)
        for mechanism in mechanisms
    ]


def with_password(user: UserRecord, password: str) -> UserRecord:
    """The user with a new password, to be checked by argon2id and by SCRAM. Slow on purpose."""
    keys = all_scram_keys(password, tuple(HASHES), ITERATIONS)
    return replace(user, password_hash=password_hash(password), scram=tuple(keys))
