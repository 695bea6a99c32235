"""Keeps this node in the catalog: registers it, sends heartbeats, leaves when it stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from lakemq.broker_core.api.errors import StartupError
from lakemq.broker_core.refusals import Refusals
from lakemq.broker_core.replication.lease import Lease
from lakemq.meta_service.api.errors import AlreadyExists, CompareFailed, MetaError, NotFound
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.remote.control_calls import HeartbeatAnswer, HeartbeatReport
from lakemq.meta_service.api.types import (
    LEADERLESS_MAX,
    STORAGE_LEVEL,
    NodeRegistration,
    ReplicaEnd,
)

_log = logging.getLogger(__name__)
ACTIVE_MAX_S: Final = 2.5
"""How long a start waits until the node is active; one that was fenced often waits longer."""
REGISTER_MAX_S: Final = 5.0
"""How long a start waits for a dead process of the same node id to be fenced."""
LEAVE_MAX_S: Final = 1.0
DEAF_S: Final = 1.0
"""Time without an answer after which heartbeats say that they get none: two of them are missing."""
FENCED: Final = "fenced"
_PAUSE_S: Final = 0.2


class LedPartitions(Protocol):
    """What this node leads, as far as the registration decides it."""

    lease: Lease
    """The right to lead; heartbeats prolong it."""
    refusals: Refusals
    """Other nodes that seem to be dead, which heartbeats tell."""

    def is_full(self) -> bool:
        """Whether the disk takes no more records."""

    def registered(self) -> None:
        """The node has registered, `Registration.broker_epoch` is new, and what it led before has
        ended."""

    async def activated(self) -> None:
        """The registration is active. Raises MetaError."""

    async def let_go(self) -> None:
        """The node is leaving: returns when it leads nothing, or has waited long enough."""


class Registration:
    """The life of one node in the catalog. Lives in the event loop."""

    def __init__(
        self,
        client: RemoteClient,
        node: NodeRegistration,
        report: Callable[[], HeartbeatReport],
        on_refused: Callable[[str], None],
        partitions: LedPartitions,
        disowned: Sequence[tuple[str, int]] = (),
        leaderless: Callable[[], Sequence[ReplicaEnd]] = tuple,
    ) -> None:
        """`report()`: what the next heartbeat says. `on_refused(message)`: another process holds
        this node id or a copy of this data folder, so this one must stop. `disowned`: (topic id,
        partition) of replicas that are damaged or missing on this disk. `leaderless()`: where
        replicas of partitions without a leader end, for heartbeats."""
        self._client = client
        self._wanted = node
        self._node = node
        self._said = report
        self._on_refused = on_refused
        self._partitions = partitions
        self._disowned = tuple(disowned)
        self._leaderless = leaderless
        self._state = ""
        self._answered_s = float("-inf")
        """When the last heartbeat was answered."""
        self._activating: asyncio.Task[None] | None = None
        self._active = asyncio.Event()
        self._soon = asyncio.Event()
        partitions.refusals.on_found = self._soon.set
        self._task: asyncio.Task[None] | None = None

    @property
    def broker_epoch(self) -> int:
        """Number of this registration; 0 before the first."""
        return self._node.broker_epoch

    async def start(self) -> None:
        """Register, and wait until the node is active. Raises StartupError."""
        try:
            await self._register_when_free()
        except MetaError as error:
            raise StartupError(f"this node can't register: {error}") from error
        self._task = asyncio.create_task(self._run())
        # A start does not fail when it takes longer: a fenced node becomes active later.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ACTIVE_MAX_S):
                await self._active.wait()

    async def _register_when_free(self) -> None:
        deadline = time.monotonic() + REGISTER_MAX_S
        while True:
            try:
                return await self._register()
            except CompareFailed as error:
                # The catalog still counts a process of this id as alive: after a crash that is this
                # node's former self, until its heartbeats have been missing long enough.
                if time.monotonic() > deadline:
                    raise
                _log.warning("waiting to register: %s", error)
                await asyncio.sleep(_PAUSE_S)

    async def _register(self) -> None:
        await self._end_activating()
        self._node = await self._client.register_node(self._wanted, self._disowned)
        self._state = ""
        # Told once: what is copied from now on counts.
        self._disowned = ()
        self._partitions.registered()

    async def _run(self) -> None:
        registered = True
        while True:
            try:
                if not registered:
                    await self._register()
                    registered = True
                registered = await self._send_heartbeats()
            except NotFound as error:
                _log.warning("registering again: %s", error)
                registered = False
            except (AlreadyExists, CompareFailed) as error:
                # Registered once, and refused now: another process took this id meanwhile. Two
                # nodes of one id would both lead its partitions.
                self._on_refused(str(error))
                return
            except MetaError as error:
                # No quorum, for instance. The catalog fences this node by itself if it lasts;
                # clients are served until then, or until the lease ends.
                _log.warning("the registration is not renewed: %s", error)
                self._shorten()
                await asyncio.sleep(_PAUSE_S)

    def _shorten(self) -> None:
        """The controller may take this process for dead unless the next stream comes in time."""
        self._partitions.lease.shorten(time.monotonic())

    async def _send_heartbeats(self) -> bool:
        """False: the node must register again, for members can keep its storage id by now."""
        node = self._node
        beats = self._client.heartbeats(
            node.node_id,
            node.broker_epoch,
            self._report,
            soon=self._soon,
            on_broken=self._shorten,
        )
        async with contextlib.aclosing(beats):
            async for answer in beats:
                self._note(answer)
                # A rolling upgrade: members that were too old at the registration have the level
                # now that keeps storage ids.
                if not node.storage_id and await self._can_keep_storage():
                    break
        return False

    async def _can_keep_storage(self) -> bool:
        level = (await self._client.status()).detail.get("feature_level", 0)
        return int(level) >= STORAGE_LEVEL

    def _report(self, number: int) -> HeartbeatReport:
        now_s = time.monotonic()
        # A node whose heartbeats arrive and whose answers do not leads nothing by its lease. It
        # says so, for another one to lead.
        hears = self._state in ("", FENCED) or now_s - self._answered_s < DEAF_S
        if hears:
            # Before it goes out: the lease counts from here, the controller's clock from its
            # arrival. It does not from one that says otherwise, so that is no lease either.
            self._partitions.lease.sent(number, now_s)
        led = self._partitions
        return self._said()._replace(
            ready=hears,
            full=led.is_full(),
            refusing=led.refusals.found(),
            leaderless=self._leaderless()[:LEADERLESS_MAX],
        )

    def _note(self, answer: HeartbeatAnswer) -> None:
        state = answer.state
        self._answered_s = time.monotonic()
        if state != self._state and self._state:
            level = logging.WARNING if state == FENCED else logging.INFO
            _log.log(level, "node %s is %s", self._wanted.node_id, state)
        self._state = state
        if state == FENCED:
            self._partitions.lease.end()
            return
        self._partitions.lease.answered(answer.number)
        self._active.set()
        if self._activating is None:
            self._activating = asyncio.create_task(self._activate())

    async def _activate(self) -> None:
        """Once for each registration: what the catalog assigns from now on is meant for it."""
        while True:
            try:
                return await self._partitions.activated()
            except MetaError as error:
                _log.warning("the catalog can't be read: %s", error)
            await asyncio.sleep(_PAUSE_S)

    async def _end_activating(self) -> None:
        task, self._activating = self._activating, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def stop(self) -> None:
        """Leave: the cluster fences this node at once, and other nodes lead what it led."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._end_activating()
        # Without a quorum there is no node that could lead in its place.
        with contextlib.suppress(MetaError, TimeoutError):
            async with asyncio.timeout(LEAVE_MAX_S):
                # With the epoch, so that a late request can't fence the process that came after.
                # Without it others wait for missing heartbeats.
                await self._client.leave(self._node.node_id, self._node.broker_epoch)
            await self._partitions.let_go()
