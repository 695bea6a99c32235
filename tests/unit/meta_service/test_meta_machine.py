"""Commands that are stored together: each sees those before it, others see all or none."""

from __future__ import annotations

import pytest

from lakemq.meta_service.catalog.apply import Applied
from lakemq.meta_service.catalog.command_codec import Command, Header, encode_command
from lakemq.meta_service.catalog.commands import CreateTopic, OpenSession, RegisterNode, Txn
from lakemq.meta_service.storage.machine import StateMachine
from tests.support.meta.disk import MemoryStore

CLIENT = bytes(16)


def put(key: bytes, value: bytes, expected: int | None = None) -> Txn:
    compares = ((key, expected),) if expected is not None else ()
    return Txn(compares, ((key, value, 0),))


COMMANDS: list[tuple[Command, Header]] = [
    (OpenSession(CLIENT), Header()),
    (put(b"a", b"1", expected=0), Header(CLIENT, 1, 0)),
    (put(b"a", b"1", expected=0), Header(CLIENT, 1, 0)),  # a retry
    (put(b"a", b"2", expected=0), Header(CLIENT, 2, 1)),  # the compare fails
    (put(b"a", b"3", expected=1), Header(CLIENT, 3, 2)),
    (CreateTopic("t", "0" * 32, 1, 1, {}), Header()),
    (RegisterNode("n", {}, "", "1", 1, False), Header()),  # scans for topics without replicas
    (Txn((), ((b"a", None, 0), (b"b", b"4", 0))), Header(CLIENT, 4, 2)),
]


class Shown:
    def __init__(self) -> None:
        self.batches: list[list[Applied]] = []
        self.store = MemoryStore()
        self.machine = StateMachine(
            self.store, lambda applied: self.batches.append(list(applied)), lambda: None
        )

    def apply(self, number: int) -> object:
        return self.machine.apply(number + 1, 1, encode_command(*COMMANDS[number]))


def test_together_they_do_what_they_do_one_by_one() -> None:
    singly, together = Shown(), Shown()
    results = []
    for number in range(len(COMMANDS)):
        results.append(singly.apply(number))
        singly.machine.flush()
    assert [together.apply(number) for number in range(len(COMMANDS))] == results
    together.machine.flush()
    assert together.machine.state == singly.machine.state  # the digest is in it
    assert dict(together.store.scan(b"")) == dict(singly.store.scan(b""))
    assert together.store.state() == together.machine.state
    assert sum(together.batches, []) == sum(singly.batches, [])
    assert len(together.batches) == 1


def test_nothing_is_shown_before_it_is_stored() -> None:
    shown = Shown()
    for number in range(4):
        shown.apply(number)
    assert not shown.batches
    assert shown.store.state().applied_index == 0
    shown.machine.flush()
    assert [len(batch) for batch in shown.batches] == [4]
    assert shown.store.state().applied_index == 4
    shown.machine.flush()
    assert len(shown.batches) == 1


def test_what_waits_to_be_stored_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakemq.meta_service.storage.machine._BATCH_MAX_BYTES", 10)
    shown = Shown()
    shown.apply(0)
    assert shown.store.state().applied_index == 1


def test_the_group_is_kept_with_the_commands() -> None:
    shown = Shown()
    shown.apply(0)
    shown.machine.set_group(2, 1, b"group")
    assert shown.machine.group() == b"group"
    shown.machine.flush()
    assert shown.store.state().applied_index == 2
    assert len(shown.batches[0]) == 2
