"""Clients of a simulated cluster: they call, retry, give up, and write down what they saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakemq.meta_service.api.remote.client_session import ClientSession
from lakemq.meta_service.catalog.command_codec import Command, Header, encode_command
from lakemq.meta_service.catalog.commands import AllocateIds, OpenSession, Txn
from lakemq.meta_service.catalog.tables import KEYS, decode_row
from tests.support.meta.cluster import Cluster, Member
from tests.support.meta.linearizability import Call

ATTEMPT_S = 1.0
DEFINITE = ("NOT_LEADER", "NO_LEADER", "OVERLOADED")


class _Attempt:
    """One command sent to one member."""

    def __init__(
        self,
        client: Client,
        generation: int,
        data: bytes,
        done: Callable[[str, Any], None],
        retry_unknown: bool,
    ) -> None:
        self._client, self._generation = client, generation
        self._data, self._done, self._retry_unknown = data, done, retry_unknown

    def start(self, member: Member) -> None:
        cluster = self._client.cluster
        if member.node is None:
            cluster.at(0.05, self._again)
            return
        cluster.at(ATTEMPT_S, self._unknown)
        member.call(lambda: member.node and member.node.submit(self._data, self._answer))

    def _is_over(self) -> bool:
        return self._client.generation != self._generation

    def _again(self) -> None:
        if not self._is_over():
            self._client.elsewhere()
            self._client.try_once(self._data, self._done, retry_unknown=self._retry_unknown)

    def _answer(self, code: str, result: Any) -> None:
        if self._is_over():
            return
        if not code:
            self._client.finish("", result, self._done)
        elif code in DEFINITE:
            self._client.cluster.at(self._client.rng.uniform(0.02, 0.2), self._again)
        else:
            self._unknown()

    def _unknown(self) -> None:
        if self._is_over():
            return
        if self._retry_unknown:
            self._client.cluster.at(0.001, self._again)
        else:
            self._client.unknown += 1
            self._client.finish("UNKNOWN", None, self._done)


class ElectionReader:
    """Reads at each new leader at the moment of its election, before it knows what is committed."""

    def __init__(self, cluster: Cluster, keys: int) -> None:
        self._cluster = cluster
        self.calls: dict[bytes, list[Call]] = {b"r%d" % number: [] for number in range(keys)}
        cluster.when_elected.append(self._read)

    def _read(self, member: Member) -> None:
        begin, node, store = self._cluster.now, member.node, member.store

        def answer(code: str, _: Any) -> None:
            for key, calls in self.calls.items():
                if not code:
                    data = store.get(KEYS + key)
                    value = decode_row(data).value if data is not None else None
                    calls.append(Call("read", None, begin, self._cluster.now, value))

        def ask() -> None:
            if node is not None and member.node is node:
                node.read_barrier(answer)

        self._cluster.at(0.0, lambda: member.call(ask))


class Client:
    """One caller at a time: register calls, counter, and a lock with fencing tokens."""

    def __init__(self, cluster: Cluster, number: int, keys: int, *, deduplicates: bool) -> None:
        self.cluster = cluster
        self.rng = cluster.rng
        self._id = number.to_bytes(16, "big")
        self._session = ClientSession(self._id)
        self._session_open = not deduplicates
        self._deduplicates = deduplicates
        self._keys = [b"r%d" % n for n in range(keys)]
        self._target = self.rng.choice(list(cluster.members))
        self._count = 0
        self.generation = 0
        self._known: dict[bytes, tuple[bytes | None, int]] = {}
        self.stopping = False
        self.idle = False
        self.calls: dict[bytes, list[Call]] = {key: [] for key in self._keys}
        self.counted: list[tuple[float, float, int]] = []
        """(begin, end, id) of every id got."""
        self.held: list[tuple[float, float, int]] = []
        """(from, until, fencing token) of every time the lock was surely held."""
        self.unknown = 0

    # ------------------------------------------------------------ talking to members

    def start(self) -> None:
        self.cluster.at(self.rng.uniform(0.0, 0.5), self._next)

    def _member(self) -> Member:
        return self.cluster.members[self._target]

    def elsewhere(self) -> None:
        self._target = self.rng.choice(list(self.cluster.members))

    def _command(self, command: Command, done: Callable[[str, Any], None]) -> None:
        """Until an answer, or "UNKNOWN" if it cannot be known."""
        if not self._deduplicates or isinstance(command, OpenSession):
            self.try_once(encode_command(command), done, retry_unknown=False)
            return
        sequence = self._session.next()
        header = Header(self._id, sequence, self._session.acknowledged)

        def settled(code: str, result: Any) -> None:
            self._session.settle(sequence)
            done(code, result)

        self.try_once(encode_command(command, header), settled, retry_unknown=True)

    def try_once(
        self, data: bytes, done: Callable[[str, Any], None], *, retry_unknown: bool
    ) -> None:
        self.generation += 1
        attempt = _Attempt(self, self.generation, data, done, retry_unknown)
        attempt.start(self._member())

    def finish(self, code: str, result: Any, done: Callable[[str, Any], None]) -> None:
        self.generation += 1
        done(code, result)

    def _read(self, key: bytes, done: Callable[[Any, int], None]) -> None:
        """(value, mod revision); tried until it succeeds."""
        self.generation += 1
        generation = self.generation

        def again() -> None:
            if generation == self.generation:
                self.elsewhere()
                self._read(key, done)

        member = self._member()

        def answer(code: str, _: Any) -> None:
            if generation != self.generation:
                return
            if code:
                self.cluster.at(0.1, again)
                return
            self.generation += 1
            data = member.store.get(KEYS + key)
            row = decode_row(data) if data is not None else None
            done(row.value if row else None, row.mod_revision if row else 0)

        if member.node is None:
            self.cluster.at(0.05, again)
            return
        self.cluster.at(ATTEMPT_S, again)
        member.call(lambda: member.node and member.node.read_barrier(answer))

    # ------------------------------------------------------------ what it does

    def _next(self) -> None:
        if self.stopping:
            self.idle = True
            return
        if not self._session_open:
            self._command(OpenSession(self._id), lambda code, result: self._opened())
            return
        action = self.rng.choices(
            [self._do_read, self._do_write, self._do_cas, self._do_count, self._do_lock],
            [3, 2, 3, 1, 2],
        )[0]
        action()

    def _opened(self) -> None:
        # Unknown or not: opening twice does no harm, and an unopened session is told.
        self._session_open = True
        self._pause()

    def _pause(self) -> None:
        self.cluster.at(self.rng.uniform(0.01, 0.15), self._next)

    def _new_value(self) -> bytes:
        self._count += 1
        return b"%s.%d" % (self._id.hex()[-4:].encode(), self._count)

    def _do_read(self) -> None:
        key = self.rng.choice(self._keys)
        call = Call("read", None, self.cluster.now)
        self.calls[key].append(call)

        def done(value: Any, revision: int) -> None:
            self._known[key] = (value, revision)
            call.end, call.result = self.cluster.now, value
            self._pause()

        self._read(key, done)

    def _do_write(self) -> None:
        key, value = self.rng.choice(self._keys), self._new_value()
        call = Call("write", value, self.cluster.now)
        self.calls[key].append(call)

        def done(code: str, result: Any) -> None:
            if self._is_refused(code, result, call):
                return
            if not code:
                self._known[key] = (value, result.revision)
                call.end, call.result = self.cluster.now, True
            self._pause()

        self._command(Txn((), ((key, value, 0),)), done)

    def _do_cas(self) -> None:
        key, value = self.rng.choice(self._keys), self._new_value()
        if key not in self._known:
            self._do_read()
            return
        expected, revision = self._known[key]
        call = Call("cas", (expected, value), self.cluster.now)
        self.calls[key].append(call)

        def done(code: str, result: Any) -> None:
            if self._is_refused(code, result, call):
                return
            if not code:
                held = result.payload[0]
                if held:
                    self._known[key] = (value, result.revision)
                else:
                    del self._known[key]
                call.end, call.result = self.cluster.now, held
            self._pause()

        self._command(Txn(((key, revision),), ((key, value, 0),)), done)

    def _is_refused(self, code: str, result: Any, call: Call) -> bool:
        """A session that was never opened: the command surely did nothing."""
        if code or result.code != "SESSION_EXPIRED":
            assert code or not result.code, result
            return False
        for calls in self.calls.values():
            if call in calls:
                calls.remove(call)
        self._session_open = False
        self._pause()
        return True

    def _do_count(self) -> None:
        begin = self.cluster.now

        def done(code: str, result: Any) -> None:
            if not code and not result.code:
                self.counted.append((begin, self.cluster.now, result.payload))
            self._pause()

        self._command(AllocateIds("counter", 1), done)

    def _do_lock(self) -> None:
        """Take the lock if it is free, keep it for a while, give it back."""

        def taken(code: str, result: Any) -> None:
            if code or result.code or not result.payload[0]:
                self._pause()
                return
            token, since = result.revision, self.cluster.now
            self.cluster.at(self.rng.uniform(0.0, 0.3), lambda: give_back(token, since))

        def give_back(token: int, since: float) -> None:
            self.held.append((since, self.cluster.now, token))
            self._command(
                Txn(((b"lock", token),), ((b"lock", None, 0),)),
                lambda code, result: self._pause(),
            )

        self._command(Txn(((b"lock", 0),), ((b"lock", self._id, 0),)), taken)
