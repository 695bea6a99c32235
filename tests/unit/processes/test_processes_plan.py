"""Goal: what processes of one node are told keeps them apart, and what they can't share is refused
in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.configuration.config import Config, load_source, parse_config
from lakemq.meta_service.api.types import (
    PROCESS_ROLE,
    NodeRegistration,
    machine_of,
    node_of,
    process_id,
)
from lakemq.processes.plan import check, count_of, folder_of, left_behind, variables


def config(text: str = "", **more: str) -> Config:
    return load_source(parse_config("lakemq.toml", text, more))


def told(whole: Config, number: int) -> Config:
    """The configuration as that process reads it."""
    return load_source(
        parse_config("lakemq.toml", whole.source.text, dict(variables(whole, number)))
    )


def test_the_first_process_is_the_node_itself(tmp_path: Path) -> None:
    whole = config(f'[node]\nid = "n1"\ndata_dir = "{tmp_path}"\nprocesses = 2\n')
    first = told(whole, 1)
    assert first.node.id == "n1"
    assert Path(first.node.data_dir) == tmp_path == folder_of(whole, 1)
    assert first.node.roles == ["meta", "broker"]
    assert (first.meta, first.cluster) == (whole.meta, whole.cluster)
    assert first.node.process == 1


def test_further_processes_are_brokers_beside_it(tmp_path: Path) -> None:
    whole = config(
        f'[node]\nid = "n1"\nrack = "a"\ndata_dir = "{tmp_path}"\nprocess_ports = 9710\n'
        '[meta]\njoin = ["h2:9701", "127.0.0.1:9701"]\n'
        '[cluster]\nadvertise = "outside:9704"\n'
    )
    third = told(whole, 3)
    assert third.node.id == "n1.p3"
    assert third.node.roles == ["broker"]
    assert third.node.rack == told(whole, 1).node.rack == "a/n1"
    assert Path(third.node.data_dir) == tmp_path / "processes" / "3"
    assert third.meta.join == ["127.0.0.1:9701", "h2:9701"]
    assert third.cluster.peer_port == 9715
    assert third.cluster.advertise == "outside:9715"


def test_a_wildcard_is_no_address_to_call() -> None:
    whole = config('[node]\nhost = "0.0.0.0"\n')
    assert told(whole, 2).meta.join == ["127.0.0.1:9701"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[node]\nid = "n1.p2"', "n1.p2"),
        ('[node]\nprocesses = 0', "node.processes"),
        ('[node]\nprocesses = "many"', "node.processes"),
        ('[node]\nroles = ["meta"]', "node.processes"),
        ("[meta]\nport = 0", "meta.port"),
        ('[cluster]\nadvertise = "h:1"', "node.process_ports"),
        ("[node]\nprocesses = 9\nprocess_ports = 65520", "node.process_ports"),
    ],
)  # fmt: skip
def test_what_processes_cannot_share_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check(config(text))


def test_auto_is_one_for_each_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    assert count_of(config('[node]\nprocesses = "auto"')) == 3
    assert count_of(config("[node]\nprocesses = 7")) == 7


def test_processes_that_no_longer_run_are_known(tmp_path: Path) -> None:
    whole = config(f'[node]\ndata_dir = "{tmp_path}"\n')
    assert left_behind(whole, 1) == []
    for name in ("2", "3", "notes"):
        (tmp_path / "processes" / name).mkdir(parents=True)
    assert left_behind(whole, 2) == ["node-1.p3"]


def test_names_tell_the_node() -> None:
    assert node_of(process_id("n1", 12)) == "n1"
    assert process_id("n1", 1) == "n1"
    for name in ("n1", "n1.p", "p2", "n1.p2.x", "n1.p123"):
        assert node_of(name) == name


def test_processes_of_a_machine_share_it() -> None:
    first = NodeRegistration("n1", {}, "a/n1", roles=("meta", "broker", PROCESS_ROLE))
    second = NodeRegistration("n1.p2", {}, "a/n1", roles=("broker", PROCESS_ROLE))
    alone = NodeRegistration("n2", {}, "a/n1", roles=("broker",))
    assert machine_of(first) == machine_of(second) != machine_of(alone)
