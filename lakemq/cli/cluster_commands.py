"""`lakemq cluster`: the group that plugins add to, and how replicas are spread over the nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

import lakemq
from lakemq.broker_core.api.command_line import (
    ExitCode,
    MetaOptions,
    fail,
    is_json,
    option_groups,
    print_json,
    say,
)
from lakemq.cli.meta_access import ask_meta
from lakemq.meta_service.api.remote.control_calls import RebalanceAction
from lakemq.meta_service.api.types import Rebalance

MOVES_PRINTED: Final = 50
cluster = typer.Typer(no_args_is_help=True, help="The cluster as a whole.")
AtOnce = Annotated[int, typer.Option(min=1, max=1000, help="Partitions that move at a time.")]


@cluster.command()
@option_groups
def rebalance(
    plan: Annotated[bool, typer.Option("--plan", help="Only show what would be moved.")] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Start no more moves; running ones are finished.")
    ] = False,
    at_once: AtOnce = 20,
    *,
    members: MetaOptions,
) -> None:
    """Move as few replicas as needed to balance nodes and racks.

    Replicas are moved off draining nodes. The rebalance runs in the background, also after a change
    of leader, until no moves are left; --plan shows them.
    """
    if plan and stop:
        fail("--plan and --stop exclude each other", ExitCode.USAGE)
    action: RebalanceAction = "plan" if plan else "stop" if stop else "start"
    _print(ask_meta(members, lambda client: client.rebalance(action, at_once=at_once)))


@cluster.command()
@option_groups
def advice(members: MetaOptions) -> None:
    """Say whether the cluster needs more nodes, or fewer.

    It follows from disks, CPU and connections, from how they grew in the last hour, and from the
    replicas that topics want. Nothing is started or stopped by it.
    """
    found = ask_meta(members, lambda client: client.loads())
    lines = found.advice or ("nothing: there are as many nodes as it takes",)
    say("\n".join(lines), nodes_wanted=found.nodes_wanted, advice=found.advice)


@cluster.command()
@option_groups
def demo(
    nodes: Annotated[int, typer.Option(min=3, max=9, help="How many nodes are started.")] = 3,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Replay only the first rows of the readings.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where to work: absent or empty; else ./lakemq-cluster.")
    ] = None,
) -> None:
    """Kill a node while devices publish, and count what is stored.

    Starts nodes on this machine, has 13 MQTT devices publish real readings to a topic of three
    replicas, kills the leader of a partition with SIGKILL in the middle, and counts all readings at
    the end. Needs LakeMQ's source, which has the readings, and its extra `demo`.
    """
    root = Path(lakemq.__file__).resolve().parents[1]
    if not (root / "examples" / "cluster" / "demo.py").is_file():
        fail("the demo's readings come with LakeMQ's source: run this where it is checked out")
    command = [sys.executable, "-m", "examples.cluster.demo", "--nodes", str(nodes)]
    command += [] if rows is None else ["--rows", str(rows)]
    command += [] if folder is None else ["--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    told = sys.stderr if is_json() else None
    code = subprocess.run(command, env=environment, check=False, stdout=told).returncode
    if is_json():
        print_json({"lost_nothing": code == 0})
    raise typer.Exit(code)


def _print(found: Rebalance) -> None:
    if is_json():
        print_json(found)
        return
    for move in found.moves[:MOVES_PRINTED]:
        replicas, target = " ".join(move.replicas), " ".join(move.target)
        typer.echo(f"{move.topic}/{move.partition}: {replicas} -> {target}")
    if len(found.moves) > MOVES_PRINTED:
        typer.echo(f"... and {len(found.moves) - MOVES_PRINTED} more")
    copies = sum(len(set(move.target) - set(move.replicas)) for move in found.moves)
    typer.echo(
        f"{len(found.moves)} partitions to move, {copies} replicas to copy; {found.moving} in "
        f"progress; {'rebalance running' if found.running else 'no rebalance running'}"
    )
