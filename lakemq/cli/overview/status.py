"""`lakemq status`: is the cluster well, on one screen?"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from lakemq.broker_core.api.command_line import (
    AdminOptions,
    ExitCode,
    duration,
    is_json,
    option_groups,
    print_json,
    print_table,
)
from lakemq.cli.doctor import State
from lakemq.cli.overview.health import alarms, health
from lakemq.cli.overview.reading import Reading, read

_NODES: Final = ("node", "state", "roles", "leads", "replicas", "disk", "cpu", "connections", "up")


@option_groups
def status(
    groups: Annotated[
        int, typer.Option("--groups", min=0, help="Groups shown, those with the most lag first.")
    ] = 5,
    *,
    node: AdminOptions,
) -> None:
    """Show nodes, partitions, clients, groups and alarms of the whole cluster.

    Any node answers for all. Exit code 1: something fails, such as a node that is not there or a
    partition without a leader; warnings alone end with 0.
    """
    found = read(node)
    checks = alarms(found)
    state = health(checks)
    behind = sorted(found.groups, key=lambda row: (-(row["lag"] or 0), row["name"]))[:groups]
    if is_json():
        shown = {
            "health": state,
            "alarms": checks,
            "cluster": found.cluster,
            "nodes": found.nodes,
            "mqtt_clients": found.clients,
            "groups": {"count": len(found.groups), "behind": behind},
            "denied": found.denied,
        }
        print_json(shown)
    else:
        _print(found, behind)
        for check in checks:
            typer.echo(f"{check.state}: {check.found}; {check.advice}")
        if found.denied:
            typer.echo(f"not shown, since you may not see them: {', '.join(found.denied)}")
        typer.echo("all is well" if state is State.OK else f"health: {state}")
    if state is State.FAILING:
        raise typer.Exit(ExitCode.FAILED)


def _print(found: Reading, behind: list[dict[str, Any]]) -> None:
    cluster, meta = found.cluster, found.cluster["meta"]
    typer.echo(f"cluster {cluster['cluster_id']}, {cluster['node']} answers ({cluster['version']})")
    typer.echo(
        f"MetaService: leader {meta['leader'] or '-'}, term {meta['term']}, "
        f"members {' '.join(meta['members'])}"
    )
    lacks = ", ".join(f"{count:,} {name}" for name, count in cluster["lacks"].items() if count)
    clients = "" if found.clients is None else f"; {found.clients:,} MQTT clients"
    typer.echo(
        f"{cluster['topics']:,} topics, {cluster['partitions']:,} partitions, "
        f"{cluster['replicas']:,} replicas, lacking: {lacks or 'nothing'}{clients}\n"
    )
    print_table(_NODES, [_node_row(each) for each in found.nodes])
    typer.echo("")
    if behind:
        rows = [(row["name"], row["state"], row["members"], row["lag"]) for row in behind]
        print_table((f"group ({len(found.groups):,})", "state", "members", "lag"), rows)
        typer.echo("")


def _node_row(node: dict[str, Any]) -> tuple[object, ...]:
    figures = node["figures"]
    connections = figures.get("connections")
    return (
        node["node"], node["state"], "+".join(node["roles"]) or "all", node["leads"],
        node["replicas"], _percent(figures.get("disk_used_ratio")),
        _percent(figures.get("cpu_ratio")), None if connections is None else int(connections),
        duration(figures.get("uptime_s")),
    )  # fmt: skip


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.0%}"
