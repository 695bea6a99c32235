"""The `lakemq` command."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lakemq.broker_core.api.command_line import (
    ExitCode,
    fail,
    is_json,
    option_groups,
    print_json,
    print_table,
    say,
)
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.configuration.config import Config, ConfigSource, load_config
from lakemq.broker_core.plugin_host import PluginHost
from lakemq.cli.acl_commands import acl
from lakemq.cli.cluster_commands import cluster
from lakemq.cli.configuration.init import init
from lakemq.cli.doctor import doctor
from lakemq.cli.explain_commands import explain
from lakemq.cli.load.bench import bench
from lakemq.cli.meta_commands import meta
from lakemq.cli.node_commands import node
from lakemq.cli.overview.status import status
from lakemq.cli.overview.top import top
from lakemq.cli.partition_commands import partition
from lakemq.cli.quota_commands import quota
from lakemq.cli.user_commands import user
from lakemq.processes.plan import check, count_of, left_behind
from lakemq.processes.supervisor import Supervisor
from lakemq.runtime import loop_factory, settle
from lakemq.service_manager import READY, STOPPING, notify, reloading
from lakemq.spark_plugin.cli.commands import commands as spark_commands
from lakemq.telemetry.logs import set_up_logs

if TYPE_CHECKING:
    from lakemq.node import Node

_log = logging.getLogger(__name__)
app = typer.Typer(
    name="lakemq",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_WITHOUT_PLUGINS: Final = {("start",), ("version",), ("--version",)}
"""Beginnings of command lines that need no command of a plugin: they begin sooner without."""
plugin_app = typer.Typer(no_args_is_help=True, help="What plugins there are.")
config_app = typer.Typer(no_args_is_help=True, help="The configuration file.")
app.add_typer(plugin_app, name="plugin")
app.add_typer(config_app, name="config")
app.add_typer(meta, name="meta")
app.add_typer(cluster, name="cluster")
app.add_typer(node, name="node")
app.add_typer(partition, name="partition")
app.add_typer(user, name="user")
app.add_typer(acl, name="acl")
app.add_typer(quota, name="quota")
app.command("explain")(explain)
app.command("init")(init)
app.command("doctor")(doctor)
app.command("status")(status)
app.command("top")(top)
app.command("bench")(bench)

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", envvar="LAKEMQ_CONFIG", metavar="FILE", help="TOML file; else defaults."
    ),
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", "-d", metavar="FOLDER", help="Overrides node.data_dir.")
]

Join = Annotated[
    list[str] | None,
    typer.Option("--join", "-j", metavar="HOST:PORT", help="Overrides meta.join; may be repeated."),
]


Processes = Annotated[
    str | None,
    typer.Option(
        "--processes", metavar="N|auto",
        help="Overrides node.processes: how many processes share the work; auto: one for each CPU.",
    ),
]  # fmt: skip


LogFormat = Annotated[
    str | None,
    typer.Option("--log-format", metavar="text|json|journald", help="Overrides node.log_format."),
]


def _load(file: Path | None, environment: Mapping[str, str] = os.environ) -> Config:
    try:
        return load_config(file, environment)
    except LakeMQError as error:
        fail(error)


def _with_options(
    data_dir: Path | None, join: Sequence[str], log_format: str | None, processes: str | None
) -> dict[str, str]:
    """The environment with options as variables, which come before the file: they have one way in,
    and are checked alike."""
    given = {
        "LAKEMQ_NODE__DATA_DIR": None if data_dir is None else str(data_dir),
        "LAKEMQ_META__JOIN": json.dumps(list(join)) if join else None,
        "LAKEMQ_NODE__LOG_FORMAT": log_format,
        "LAKEMQ_NODE__PROCESSES": processes,
    }
    return {**os.environ, **{name: text for name, text in given.items() if text is not None}}


@app.command()
@option_groups
def start(
    config: ConfigFile = None,
    data_dir: DataDir = None,
    join: Join = None,
    log_format: LogFormat = None,
    processes: Processes = None,
) -> None:
    """Run a node until Ctrl-C or SIGTERM."""
    environment = _with_options(data_dir, join or (), log_format, processes)
    loaded = _load(config, environment)
    set_up_logs(loaded.node.log_level, loaded.node.log_format, loaded.node.id)
    try:
        count = 1 if loaded.node.process else count_of(loaded)
        if count > 1:
            check(loaded)
        if not loaded.node.process and (missing := left_behind(loaded, count)):
            _log.warning(
                "%s will not run, though there are records of it: start as many processes as "
                "before, or decommission it while it runs", ", ".join(missing),
            )  # fmt: skip
        with asyncio.Runner(loop_factory=loop_factory(loaded.node.event_loop)) as runner:
            if count > 1:
                runner.run(Supervisor(loaded, count, config, environment).run())
            else:
                runner.run(_run(loaded))
    except LakeMQError as error:
        fail(error)


async def _run(config: Config) -> None:
    from lakemq.node import Node

    node = Node(config)
    stop, hangup = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Before the start, so that a signal during recovery ends the node in order.
        loop.add_signal_handler(number, stop.set)
    # Also before: a node that starts reads the file again when it is ready, one that stops does
    # not, and SIGHUP ends neither.
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    if config.node.process:
        _stop_with_parent(loop, stop)
    await node.start()
    following = loop.create_task(_reload_at(hangup, node))
    try:
        addresses = {**node.addresses(), **node.shared_addresses()}
        settle()
        node.watch_loop()
        lines = [f"{name} {address}" for name, address in addresses.items()]
        say("\n".join([*lines, "ready"]), ready=True, addresses=addresses)
        sys.stdout.flush()
        notify(READY)
        # A node that can't go on, as after a failed write, stops with an error: the supervisor
        # starts it again.
        node.failed.add_done_callback(lambda _: stop.set())
        await stop.wait()
        if node.failed.done():
            raise LakeMQError(f"the node stops: {node.failed.result()}")
    finally:
        following.cancel()
        notify(STOPPING)
        await node.stop()


def _stop_with_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Standard input is a pipe from who started this process, and ends with that."""

    def ended() -> None:
        loop.remove_reader(sys.stdin.fileno())
        stop.set()

    loop.add_reader(sys.stdin.fileno(), ended)


async def _reload_at(hangup: asyncio.Event, node: Node) -> None:
    """Read the configuration again whenever `hangup` is set."""
    while True:
        await hangup.wait()
        hangup.clear()
        notify(reloading())
        try:
            await node.reloads.reload()
        except LakeMQError:
            pass  # it is in the log, and the node goes on as it was
        except Exception:
            _log.exception("the configuration was not reloaded")
        finally:
            notify(READY)


@plugin_app.command("list")
@option_groups
def list_plugins(config: ConfigFile = None) -> None:
    """Show plugins: version, on or off, what they register, why they failed."""
    host = PluginHost(_load(config).source)
    try:
        host.load(strict=False, disabled_too=True)
    except LakeMQError as error:
        fail(error)
    rows = []
    for plugin in host.plugins:
        state = "failed" if plugin.error else "on" if plugin.enabled else "off"
        hooks = [each.removeprefix("register_") for each in plugin.hooks]
        rows.append(
            (plugin.name, plugin.version, plugin.distribution, state, plugin.error or hooks)
        )
    print_table(("plugin", "version", "from", "state", "registers"), rows)
    if any(plugin.error and plugin.enabled for plugin in host.plugins):
        raise typer.Exit(ExitCode.FAILED)


@config_app.command("check")
@option_groups
def check_config(config: ConfigFile = None) -> None:
    """Check the configuration without starting a node: sections, also of plugins, ports used
    twice, missing files, what plugins register. Reports all errors at once."""
    from lakemq.cli.config_findings import check

    findings = check(config, os.environ)
    if is_json():
        print_json({**findings._asdict(), "ok": not findings.errors})
        raise typer.Exit(ExitCode.USAGE if findings.errors else ExitCode.DONE)
    for warning in findings.warnings:
        typer.echo(f"lakemq: warning: {warning}", err=True)
    if findings.errors:
        fail("\n".join(map(str, findings.errors)), ExitCode.USAGE)
    typer.echo(f"{config or 'defaults'}: ok; plugins on: {', '.join(findings.plugins)}")


@app.command()
@option_groups
def version() -> None:
    """Print the version."""
    found = importlib.metadata.version("lakemq")
    say(f"lakemq {found}", version=found)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"lakemq {importlib.metadata.version('lakemq')}")
        raise typer.Exit


@app.callback()
def _lakemq(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """One broker for the whole road from a device to a lakehouse table."""


def _add_plugin_commands() -> None:
    """Add the commands of enabled plugins. Errors of the configuration are reported by the commands
    that load it, so that `lakemq config check` can run.
    """
    file = os.environ.get("LAKEMQ_CONFIG")
    try:
        source = load_config(Path(file) if file else None, os.environ).source
        host = PluginHost(source)
        host.load(strict=False)
    except LakeMQError:
        host = PluginHost(ConfigSource("(defaults)"))
        host.load(strict=False)
    found = [each for _, group in host.collect("register_commands", lambda _: {}) for each in group]
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    for name, command in [*found, *spark_commands()]:
        group = groups.get(name)
        if group is command:
            continue  # added before: a second time would double its commands
        if isinstance(command, typer.Typer) and group is not None:
            # Beside the commands that the group has already.
            group.registered_commands += command.registered_commands
        elif isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)


def main() -> None:
    """Entry point of the `lakemq` command."""
    if tuple(sys.argv[1:2]) not in _WITHOUT_PLUGINS:
        try:
            _add_plugin_commands()
        except LakeMQError as error:
            typer.echo(f"lakemq: {error}", err=True)
            sys.exit(1)
    app()
