"""Which processes are taken for dead, and when."""

from __future__ import annotations

import pytest

from lakemq.broker_core.replication.lease import SUSPECT_S
from lakemq.meta_service.api.types import NodeRegistration
from lakemq.meta_service.control.dead_processes import REFUSED_S, REOPEN_S, DeadProcesses
from lakemq.meta_service.control.failure_detector import (
    FailureDetector,
    NodeReport,
    NodeStateChange,
)

ENDED_S = 10.0
DUE_S = ENDED_S + REOPEN_S


def ended(member_id: str = "m") -> DeadProcesses:
    """`n`, in broker epoch 1, had a stream that has ended."""
    processes = DeadProcesses(member_id)
    processes.stream_used("n", 1, "first")
    processes.stream_ended("n", 1, "first", ENDED_S)
    return processes


def test_a_process_is_dead_when_its_stream_ended_and_another_node_is_refused() -> None:
    processes = ended()
    assert not processes.is_dead("n", 1, DUE_S)
    processes.refused("w", "n", 1, ENDED_S + 0.1)
    assert not processes.is_dead("n", 1, DUE_S - 0.01)
    assert processes.is_dead("n", 1, DUE_S)
    assert not processes.is_dead("n", 2, DUE_S), "another process by now"


def test_a_living_process_has_let_its_lease_run_out_by_then() -> None:
    assert SUSPECT_S < REOPEN_S


@pytest.mark.parametrize("witness", ["m", "n"])
def test_the_controllers_own_node_is_no_witness(witness: str) -> None:
    processes = ended()
    processes.refused(witness, "n", 1, ENDED_S + 0.1)
    assert not processes.is_dead("n", 1, DUE_S)


def test_a_stream_that_is_open_proves_life() -> None:
    processes = ended()
    processes.refused("w", "n", 1, ENDED_S + 0.1)
    processes.stream_used("n", 1, "second")
    assert not processes.is_dead("n", 1, DUE_S)
    # The first one is told to have ended late, or twice.
    processes.stream_ended("n", 1, "first", ENDED_S + 0.2)
    assert not processes.is_dead("n", 1, DUE_S + 1)


def test_an_old_refusal_does_not_count() -> None:
    processes = ended()
    processes.refused("w", "n", 1, ENDED_S)
    assert not processes.is_dead("n", 1, ENDED_S + REFUSED_S + 0.01)


def test_a_new_leader_takes_nothing_over_but_lost_links_of_members() -> None:
    processes = ended()
    processes.refused("w", "n", 1, ENDED_S)
    processes.restart()
    processes.refused("w", "n", 1, ENDED_S + 0.1)
    assert not processes.is_dead("n", 1, DUE_S), "its stream was to the leader before"
    processes.member_lost("n", ENDED_S)
    assert processes.is_dead("n", 1, DUE_S)
    processes.stream_used("n", 1, "here")
    assert not processes.is_dead("n", 1, DUE_S)
    processes.keep([])
    processes.refused("w", "n", 1, ENDED_S + 0.1)
    processes.member_reached("n")
    assert not processes.is_dead("n", 1, DUE_S)


def test_a_dead_node_is_fenced_and_its_last_heartbeat_does_not_let_it_in() -> None:
    detector = FailureDetector("m")
    detector.restart(0.0)
    detector.record_heartbeat("n", 1, ENDED_S - 0.1, NodeReport())
    detector.processes.stream_used("n", 1, "first")
    detector.processes.stream_ended("n", 1, "first", ENDED_S)
    detector.processes.refused("w", "n", 1, ENDED_S)
    active = NodeRegistration("n", {}, broker_epoch=1, state="active", heartbeats=True)
    assert detector.state_changes([active], DUE_S - 0.01) == []
    assert detector.state_changes([active], DUE_S) == [NodeStateChange("n", 1, "fenced")]
    fenced = NodeRegistration("n", {}, broker_epoch=1, state="fenced", heartbeats=True)
    assert detector.state_changes([fenced], ENDED_S + 0.8) == []
    # Flapping: heartbeats must go on for a while.
    for at_s in (ENDED_S + 0.8, ENDED_S + 1.4):
        detector.record_heartbeat("n", 1, at_s, NodeReport())
        detector.processes.stream_used("n", 1, "second")
    changes = detector.state_changes([fenced], ENDED_S + 1.4)
    assert changes == [NodeStateChange("n", 1, "active")]
