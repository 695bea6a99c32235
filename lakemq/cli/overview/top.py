"""`lakemq top`: what nodes and groups do now, on a terminal."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lakemq.broker_core.api.admin_client import Refused
from lakemq.broker_core.api.command_line import (
    AdminOptions,
    fail,
    is_json,
    option_groups,
    print_json,
    print_table,
)
from lakemq.cli.overview.health import alarms, health
from lakemq.cli.overview.sampling import STEPS, Sampler, View

if TYPE_CHECKING:
    from rich.console import RenderableType

_NODES: Final = (
    "node", "state", "leads", "cpu", "disk", "clients", "stored/s", "stored kB/s", "read kB/s",
    "MQTT in/s", "MQTT out/s",
)  # fmt: skip
_GROUPS: Final = ("group", "state", "members", "lag")


@option_groups
def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print it once; also where there is no terminal.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=STEPS, max=3600, help="Seconds, by screen.")
    ] = 5.0,
    groups: Annotated[
        int, typer.Option("--groups", min=0, help="Groups shown, those with the most lag first.")
    ] = 10,
    *,
    node: AdminOptions,
) -> None:
    """Show what nodes, clients and groups do, again and again until Ctrl-C.

    Any node tells of all; each is asked for its metrics. No node gets more than one request a
    second, so that the first rates are there after some seconds.
    """
    sampler = Sampler(node)
    try:
        view = sampler.sample()
        if once or is_json() or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
            sampler.measure(view)
            _print(view, groups)
            return
    except Refused as refusal:
        fail(refusal, refusal.exit_code, code=refusal.code)
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None
    # SIGTERM leaves by `Live`, too, which gives the terminal back as it was.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        _follow(sampler, view, interval, groups)
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _follow(sampler: Sampler, view: View, interval_s: float, groups: int) -> None:
    from rich.live import Live  # here: other commands begin sooner without

    from lakemq.cli.overview.screen import screen

    def drawn(problem: str = "") -> RenderableType:
        tables = ((_NODES, _node_rows(view)), (_GROUPS, _group_rows(view, groups)))
        return screen(_head(view), tables, problem)

    due_s = time.monotonic()
    live = Live(drawn(), screen=True, auto_refresh=False)
    try:  # not `with`: a signal that comes while it begins must give the terminal back, too
        live.start(refresh=True)
        while True:
            due_s = max(due_s + interval_s, time.monotonic())
            problem = ""
            try:
                view = sampler.sample()
            except Refused as refusal:
                problem = f"{time.strftime('%H:%M:%S')} {refusal}; what is below is older"
            live.update(drawn(problem), refresh=True)
            time.sleep(max(0.0, due_s - time.monotonic()))
    finally:
        live.stop()


def _print(view: View, groups: int) -> None:
    checks = alarms(view.reading)
    if is_json():
        shown = {
            "health": health(checks),
            "alarms": checks,
            "nodes": [{**row, "rates": view.rates.get(row["node"])} for row in view.reading.nodes],
            "groups": _behind(view, groups),
        }
        print_json(shown)
        return
    typer.echo("\n".join(_head(view)) + "\n")
    print_table(_NODES, _node_rows(view))
    if view.reading.groups:
        typer.echo("")
        print_table(_GROUPS, _group_rows(view, groups))


def _head(view: View) -> list[str]:
    found = view.reading
    checks = alarms(found)
    lacks = ", ".join(f"{n:,} {name}" for name, n in found.cluster["lacks"].items() if n)
    return [
        f"cluster {found.cluster['cluster_id']}, {time.strftime('%H:%M:%S')}, "
        f"{found.cluster['topics']:,} topics, {found.cluster['partitions']:,} partitions, "
        f"lacking: {lacks or 'nothing'}; health: {health(checks)}",
        *(f"{check.state}: {check.found}" for check in checks[:5]),
    ]


def _behind(view: View, groups: int) -> list[dict[str, object]]:
    return sorted(view.reading.groups, key=lambda row: (-(row["lag"] or 0), row["name"]))[:groups]


def _group_rows(view: View, groups: int) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in ("name", *_GROUPS[1:])) for row in _behind(view, groups)]


def _node_rows(view: View) -> list[tuple[object, ...]]:
    rows = []
    for row in view.reading.nodes:
        figures, rates = row["figures"], view.rates.get(row["node"], {})
        percents = (figures.get(name) for name in ("cpu_ratio", "disk_used_ratio"))
        rows.append((
            row["node"], row["state"], row["leads"],
            *(None if each is None else f"{each:.0%}" for each in percents),
            _whole(rates.get("clients")), _whole(rates.get("stored")),
            _whole(rates.get("bytes_stored"), 1000), _whole(rates.get("bytes_out"), 1000),
            _whole(rates.get("mqtt_in")), _whole(rates.get("mqtt_out")),
        ))  # fmt: skip
    return rows


def _whole(value: float | None, unit: int = 1) -> int | None:
    return None if value is None else round(value / unit)
