"""All commands of `lakemq`, those of plugins among them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lakemq import __version__
from lakemq.broker_core.api.command_line import (
    ExitCode,
    fail,
    is_json,
    option_groups,
    print_json,
    say,
)
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.configuration.config import ConfigSource, load_config
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
from lakemq.cli.plugins.commands import plugin
from lakemq.cli.quota_commands import quota
from lakemq.cli.start import ConfigFile, start
from lakemq.cli.user_commands import user
from lakemq.spark_plugin.cli.commands import commands as spark_commands

app = typer.Typer(
    name="lakemq",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(no_args_is_help=True, help="The configuration file.")
app.add_typer(plugin, name="plugin")
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
app.command()(start)


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
    say(f"lakemq {__version__}", version=__version__)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"lakemq {__version__}")
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


def add_plugin_commands() -> None:
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


def run() -> None:
    """Run the command line of this process with the commands of enabled plugins."""
    try:
        if sys.argv[1:2] != ["version"]:
            add_plugin_commands()
    except LakeMQError as error:
        typer.echo(f"lakemq: {error}", err=True)
        sys.exit(1)
    app()
