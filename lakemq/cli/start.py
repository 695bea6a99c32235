"""`lakemq start`: run a node, or the processes of one."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.broker_core.api.command_line import fail, option_groups, say
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.configuration.config import Config, load_config
from lakemq.installation import check_installation
from lakemq.processes.plan import check, count_of, left_behind
from lakemq.processes.supervisor import Supervisor
from lakemq.runtime import (
    START_THRESHOLDS,
    collect_garbage,
    import_later,
    loop_factory,
    settle,
)
from lakemq.service_manager import READY, STOPPING, notify, reloading
from lakemq.telemetry.logs import set_up_logs

if TYPE_CHECKING:
    from lakemq.node import Node

_log = logging.getLogger(__name__)

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


def load(file: Path | None, environment: Mapping[str, str] = os.environ) -> Config:
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


app = typer.Typer(name="lakemq", pretty_exceptions_enable=False)
"""`start` alone, for a process that is to be ready soon."""


@app.callback()
def _lakemq() -> None:
    """One broker for the whole road from a device to a lakehouse table."""


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
    loaded = load(config, environment)
    set_up_logs(loaded.node.log_level, loaded.node.log_format, loaded.node.id)
    try:
        check_installation()
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
                collect_garbage()
                runner.run(Supervisor(loaded, count, config, environment).run())
            else:
                runner.run(_run(loaded))
    except LakeMQError as error:
        fail(error)


async def _run(config: Config) -> None:
    from lakemq.node import Node

    collect_garbage(START_THRESHOLDS)
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
        lines = [f"{name} {address}" for name, address in addresses.items()]
        say("\n".join([*lines, "ready"]), ready=True, addresses=addresses)
        sys.stdout.flush()
        notify(READY)
        settle()
        node.watch_loop()
        loop.run_in_executor(None, import_later)
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
