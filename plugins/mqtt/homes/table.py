"""Which node has the session of which client id: one `HomeTable` for each partition. No IO.

The node that leads the partition of a client id is its *home*. A node that wants the session claims
it there: the home raises the session's epoch, has the owner before let go of it and hand over its
state, and grants the claim. What an owner wants kept is written by the home, if its epoch is still
the session's. So a client id has one owner an epoch, and no other node's writes count.

A claim is not written: the first write of its owner is. A home that has come to lead asks all live
nodes what they own before it grants anything (`gather`), and its epochs are above those of all
homes before it. What an owner was promised is in the record whose offset the entry holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

User = tuple[str, str]
"""Kind and name of the principal that a session belongs to."""
EPOCH_BITS: Final = 32
"""An epoch is the leader epoch of the partition, and below it a number of the home's own."""
LET_GO_MS: Final = 500
"""How long an owner may take to let go. Then the session goes on from what was kept of it."""
UNKEPT_MS: Final = 5_000
"""The same where nothing is kept of it: longer than it takes to notice that a node is gone."""
GATHER_MS: Final = 3_000
"""How long a new home waits for live nodes to say what they own."""
ORPHAN_MS: Final = 30_000
"""How long the session of a node that is gone waits for its client, or for that node to be back,
before its home takes it; one with a will does not wait."""
_HANDED_MAX: Final = 8
"""Owners that are remembered of a session that goes on and on before it is kept."""
NOT_KEPT: Final = -1
"""In place of an offset: the topic has no record of the session."""


class Why(Enum):
    """Why a claim was refused."""

    ANOTHERS = "another_user"
    FULL = "full"
    SUPERSEDED = "superseded"
    """The client has connected once more since."""


class Owner(NamedTuple):
    """A node in one of its lives."""

    node: str
    life: int
    """Its broker epoch."""


class Claim(NamedTuple):
    """A node wants the session of a client that connects to it."""

    client_id: str
    owner: Owner
    user: User
    clean: bool
    """Clean start: the session before ends."""
    here: bool
    """The node has the client's session in memory."""
    replace: bool
    """A session of another user is replaced rather than left to that one."""


class Owned(NamedTuple):
    """A session, as the node says that has it."""

    client_id: str
    epoch: int
    """0: it was never claimed, since the node was alone."""
    user: User
    urgent: bool


class Known(NamedTuple):
    """What its home makes of it."""

    client_id: str
    told: int
    """The epoch in which the node said that it owns it."""
    epoch: int
    """In which it does; 0: not any more."""


@dataclass(slots=True)
class Entry:
    """One session."""

    epoch: int
    owner: Owner
    user: User
    urgent: bool = False
    """It has a will: if its owner is gone, it is taken at once."""
    offset: int = NOT_KEPT
    """Of its newest record."""
    number: int = 0
    """Of the owner's newest write."""
    handed: tuple[tuple[Owner, int], ...] = ()
    """Who handed over states that the owner got, and has kept nothing of, and in which epochs."""


class Ask(NamedTuple):
    """Have the owner let go of a session."""

    client_id: str
    owner: Owner
    epoch: int
    ends: bool
    """The session ends there; else its state is handed over."""


class Granted(NamedTuple):
    """A claim was granted. The session that the client had is, in this order: nowhere (`clean`), in
    the claimant's memory (`here`), in `state`, in the record at `offset`."""

    number: int
    """Of the claim, as `HomeTable.claim` gave it."""
    client_id: str
    epoch: int
    clean: bool
    here: bool
    state: bytes | None
    offset: int


class Unused(NamedTuple):
    """The state that an owner handed over is lost: who got it is gone, or did not hear of it."""

    client_id: str
    owner: Owner
    """Before, in this epoch."""
    epoch: int


class Refused(NamedTuple):
    """A claim was not granted."""

    number: int
    client_id: str
    why: Why


Decision = Ask | Granted | Refused | Unused


class _Pending(NamedTuple):
    """A claim that waits for the owner to let go."""

    number: int
    claim: Claim
    deadline_ms: int


class HomeTable:
    """The sessions of one partition. Decisions are collected until they are taken."""

    def __init__(self, entries_max: int = 1_000_000) -> None:
        self.entries: dict[str, Entry] = {}
        self.decisions: list[Decision] = []
        self._entries_max = entries_max
        self._pending: dict[str, _Pending] = {}
        self._awaited: set[str] = set()
        """Nodes that have not said yet what they own."""
        self._gather_until_ms = 0
        self._gone: dict[str, int] = {}
        """Sessions whose owner is gone -> since when that is known."""
        self._lives: Mapping[str, int] = {}
        self._leader_epoch = self._count = self._numbers = 0

    # -- coming to lead

    def restore(self, client_id: str, entry: Entry | None) -> None:
        """The newest record that was read of a client id; None: a tombstone."""
        if entry is None:
            self.entries.pop(client_id, None)
        else:
            self.entries[client_id] = entry

    def gather(self, leader_epoch: int, lives: Mapping[str, int], now_ms: int) -> set[str]:
        """The partition was read back, and is led in this epoch. Returns nodes that are to be asked
        what they own. `lives`: broker epochs of live nodes."""
        self._leader_epoch, self._count = leader_epoch, 0
        self._awaited = set(lives)
        self.nodes(lives, now_ms)
        self._gather_until_ms = now_ms + GATHER_MS
        return set(lives)

    def owns(self, owner: Owner, sessions: Sequence[Owned]) -> list[Known]:
        """What becomes of the sessions that a node says it owns."""
        found: dict[str, int] = {}
        told = {one.client_id: one.epoch for one in sessions}
        for one in sessions:
            entry = self.entries.get(one.client_id)
            if entry is None or (one.epoch > entry.epoch and not self._is_mine(entry)):
                full = entry is None and len(self.entries) >= self._entries_max
                found[one.client_id] = 0 if full else self._enter(owner, one, entry)
            elif (entry.epoch, entry.owner.node) == (one.epoch, owner.node):
                entry.owner, entry.urgent = owner, one.urgent
                found[one.client_id] = one.epoch
            elif self._has_not_heard(entry, owner, one):
                found[one.client_id] = entry.epoch
            else:
                found[one.client_id] = 0
        return [Known(each, told[each], epoch) for each, epoch in found.items()]

    def _has_not_heard(self, entry: Entry, owner: Owner, told: Owned) -> bool:
        """Whether the node owns the session, and its epoch is on the way to it. Where something is
        kept it may have older things in memory than that: it had lost the session meanwhile."""
        first = not told.epoch or entry.offset == NOT_KEPT
        return first and entry.owner == owner and entry.user == told.user

    def _is_mine(self, entry: Entry) -> bool:
        """Whether its epoch was given in this leadership: no other can be newer."""
        return entry.epoch >> EPOCH_BITS == self._leader_epoch

    def _enter(self, owner: Owner, one: Owned, before: Entry | None) -> int:
        offset = before.offset if before is not None else NOT_KEPT
        epoch = one.epoch or self._next_epoch()
        if before is not None and before.owner.node != owner.node:
            # It may have been asked before, and told that the session is its own.
            self.decisions.append(Ask(one.client_id, before.owner, before.epoch, ends=False))
        self.entries[one.client_id] = Entry(epoch, owner, one.user, one.urgent, offset)
        return epoch

    def told(self, node: str) -> None:
        """The node has said all that it owns, or can't be asked."""
        self._awaited.discard(node)

    def serving(self, now_ms: int) -> bool:
        """Whether claims may be granted and sessions written."""
        if self._awaited and now_ms >= self._gather_until_ms:
            self._awaited.clear()
        return not self._awaited

    # -- claims

    def _next_epoch(self) -> int:
        self._count += 1
        return (self._leader_epoch << EPOCH_BITS) + self._count

    def claim(self, claim: Claim, now_ms: int) -> int:
        """Returns the claim's number; its outcome is among `decisions`, now or later."""
        self._numbers += 1
        number, client_id = self._numbers, claim.client_id
        entry = self.entries.get(client_id)
        anothers = entry is not None and entry.user != claim.user
        if anothers and not claim.replace:
            self._refuse(number, client_id, Why.ANOTHERS)
            return number
        if entry is None and len(self.entries) >= self._entries_max:
            self._refuse(number, client_id, Why.FULL)
            return number
        if anothers:
            claim = claim._replace(clean=True)
        waiting = self._pending.pop(client_id, None)
        if waiting is not None:
            # The owner is being asked already. The one that came last has the client.
            self._refuse(waiting.number, client_id, Why.SUPERSEDED)
            clean = claim.clean or waiting.claim.clean
            self._pending[client_id] = _Pending(
                number, claim._replace(clean=clean), waiting.deadline_ms
            )
        elif entry is None or entry.owner == claim.owner or not self._lives_on(entry.owner):
            here = entry is not None and entry.owner == claim.owner and claim.here
            self._grant(number, claim, here=here, state=None)
        else:
            self.decisions.append(Ask(client_id, entry.owner, entry.epoch, claim.clean))
            self._pending[client_id] = _Pending(number, claim, now_ms + LET_GO_MS)
        return number

    def _lives_on(self, owner: Owner) -> bool:
        return self._lives.get(owner.node, owner.life + 1) <= owner.life

    def let_go(self, client_id: str, epoch: int, state: bytes | None) -> bool:
        """The owner in that epoch has let go; None: it can't be reached, or knows nothing of it.
        Whether a claim has waited for that: else the state goes nowhere."""
        waiting, entry = self._pending.get(client_id), self.entries.get(client_id)
        if waiting is None or entry is None or entry.epoch != epoch:
            return False
        del self._pending[client_id]
        self._grant(waiting.number, waiting.claim, here=False, state=state)
        return True

    def _grant(self, number: int, claim: Claim, *, here: bool, state: bytes | None) -> None:
        before, epoch = self.entries.get(claim.client_id), self._next_epoch()
        offset = before.offset if before is not None else NOT_KEPT
        urgent = before is not None and before.urgent and not claim.clean
        handed: tuple[tuple[Owner, int], ...] = ()
        if before is not None and here:
            handed = before.handed
        elif before is not None and state:
            handed = (*before.handed, (before.owner, before.epoch))[-_HANDED_MAX:]
        elif before is not None:
            self._unused(claim.client_id, before)
        self.entries[claim.client_id] = Entry(
            epoch, claim.owner, claim.user, urgent, offset, handed=handed
        )
        self.decisions.append(
            Granted(number, claim.client_id, epoch, claim.clean, here, state, offset)
        )

    def _unused(self, client_id: str, entry: Entry) -> None:
        """What the owner has in memory alone is lost: those before it are told."""
        self.decisions += [Unused(client_id, *one) for one in entry.handed]
        entry.handed = ()

    def _refuse(self, number: int, client_id: str, why: Why) -> None:
        self.decisions.append(Refused(number, client_id, why))

    # -- writes

    def begin_write(self, client_id: str, epoch: int, node: str, number: int) -> bool:
        """Whether a state may be written: the node owns the session in that epoch. `number`: of the
        node's writes of this session, so that a late message undoes nothing; the newest one may
        come again, since it was not stored."""
        entry = self.entries.get(client_id)
        if entry is None or not self.owned_by(client_id, epoch, node) or number < entry.number:
            return False
        entry.number = number
        return True

    def owned_by(self, client_id: str, epoch: int, node: str) -> bool:
        """Whether a node owns a session in that epoch. To be asked again when a write is on disk:
        who was granted the session meanwhile may not have got it."""
        entry = self.entries.get(client_id)
        return entry is not None and entry.epoch == epoch and entry.owner.node == node

    def written(self, client_id: str, epoch: int, offset: int, urgent: bool) -> None:
        """A record of the session as its owner in that epoch has it is on disk; `NOT_KEPT`: that it
        is not kept any more."""
        entry = self.entries.get(client_id)
        if entry is not None:
            entry.offset, entry.urgent = offset, urgent
            if entry.epoch == epoch:
                entry.handed = ()

    def ended(self, client_id: str, epoch: int, node: str) -> None:
        """The owner says that the session has ended; its record, if there was one, is gone."""
        if self.owned_by(client_id, epoch, node) and client_id not in self._pending:
            del self.entries[client_id]

    # -- time, and nodes that go

    def nodes(self, lives: Mapping[str, int], now_ms: int) -> None:
        """Which nodes are alive now, and their broker epochs."""
        self._lives = dict(lives)
        for node in sorted(self._awaited - lives.keys()):
            self.told(node)
        for client_id, entry in self.entries.items():
            if not self._lives_on(entry.owner):
                self._gone.setdefault(client_id, now_ms)
                self._unused(client_id, entry)
        for client_id in [each for each in self._pending if each in self._gone]:
            self.let_go(client_id, self.entries[client_id].epoch, None)

    def tick(self, now_ms: int) -> None:
        """Grant what has waited for too long."""
        for client_id, waiting in list(self._pending.items()):
            entry = self.entries[client_id]
            unkept = entry.offset == NOT_KEPT and not waiting.claim.clean
            if now_ms >= waiting.deadline_ms + (UNKEPT_MS - LET_GO_MS if unkept else 0):
                self.let_go(client_id, entry.epoch, None)

    def orphans(self, now_ms: int, count_max: int) -> list[str]:
        """Sessions that the home is to take now, since their owner is gone, `count_max` at most.
        What was in that node's memory alone is forgotten."""
        found: list[str] = []
        for client_id, since_ms in list(self._gone.items()):
            entry = self.entries.get(client_id)
            if entry is None or self._lives_on(entry.owner):
                del self._gone[client_id]
            elif entry.offset == NOT_KEPT:
                del self._gone[client_id], self.entries[client_id]
            elif entry.urgent or now_ms - since_ms >= ORPHAN_MS:
                found.append(client_id)
                if len(found) == count_max:
                    break
        return found

    def adopt(self, client_id: str, owner: Owner) -> int:
        """The home takes a session that `orphans` gave; returns the number of this claim, which is
        granted."""
        self._numbers += 1
        claim = Claim(
            client_id, owner, self.entries[client_id].user, clean=False, here=False, replace=False
        )
        self._grant(self._numbers, claim, here=False, state=None)
        return self._numbers

    def relieve(self, client_id: str, epoch: int, owner: Owner, now_ms: int) -> int | None:
        """An owner that is to leave gives up the session of a client that is away: the home has it
        handed over. None: it was not its own."""
        entry = self.entries.get(client_id)
        if entry is None or entry.epoch != epoch or client_id in self._pending:
            return None
        claim = Claim(client_id, owner, entry.user, clean=False, here=False, replace=False)
        return self.claim(claim, now_ms)

    def take(self) -> list[Decision]:
        """All decisions since the last call."""
        decisions, self.decisions = self.decisions, []
        return decisions
