"""`lakemq doctor`: is this machine, and this configuration, fit to run a node?"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from lakemq.broker_core.api.command_line import ExitCode, option_groups, print_table
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.configuration.config import Config, ConfigSource, load_config
from lakemq.broker_core.plugin_host import LoadedPlugin, PluginHost
from lakemq.cli.config_findings import Listening, check, listening
from lakemq.config_checks import certificates, sections
from lakemq.installation import check_installation

DESCRIPTORS_MIN: Final = 65_536
FREE_RATIO_MIN: Final = 0.1
FSYNC_SLOW_S: Final = 0.02
"""An acknowledgement waits for one fsync at least."""
EXPIRES_SOON: Final = timedelta(days=30)
_FSYNCS: Final = 21
_WRITE: Final = bytes(4096)
_TIMEX_BYTES: Final = 512
"""More than `struct timex` of any Linux."""
_STATUS_AT: Final = 40
"""Place of `status` in `struct timex` where `long` has 8 bytes."""
_UNSYNCHRONISED: Final = 0x40
"""`STA_UNSYNC` of adjtimex(2)."""


class State(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILING = "failing"


class Check(NamedTuple):
    """What was looked at, what was found, and what to do about it (empty: nothing)."""

    name: str
    state: State
    found: str
    advice: str = ""


@option_groups
def doctor(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", envvar="LAKEMQ_CONFIG", metavar="FILE", help="TOML; else defaults."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", "-d", metavar="FOLDER", help="Overrides node.data_dir."),
    ] = None,
) -> None:
    """Check the configuration, limits, disk, ports, clock and certificates of this machine.

    Run it as the user that runs the node, before a start or beside a running node. Nothing is
    changed; a small file is written into the data folder, and deleted, to time fsync. Exit code 1:
    something would keep a node from working.
    """
    environment = dict(os.environ)
    if data_dir is not None:
        environment["LAKEMQ_NODE__DATA_DIR"] = str(data_dir)
    checks = list(examine(config, environment))
    print_table(
        ("check", "state", "found", "what to do"),
        [(each.name, each.state.value, each.found, each.advice) for each in checks],
        data=checks,
    )
    if any(each.state is State.FAILING for each in checks):
        raise typer.Exit(ExitCode.FAILED)


def examine(config: Path | None, environment: Mapping[str, str]) -> Iterator[Check]:
    """All checks; those that need a valid configuration only with one."""
    try:
        check_installation()
    except LakeMQError as wrong:
        yield Check("installation", State.FAILING, str(wrong), "see docs/versions.md")
        return
    # Imported here: Windows has no such module.
    import resource

    yield of_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield of_clock(_clock_status())
    findings = check(config, environment)
    for warning in findings.warnings:
        yield Check("config", State.WARNING, warning)
    for error in findings.errors:
        yield Check("config", State.FAILING, str(error), "mend the setting")
    if findings.errors:
        return
    try:
        loaded = load_config(config, environment)
        plugins = _plugins(loaded.source)
    except LakeMQError as error:
        yield Check("config", State.FAILING, str(error), "mend the setting")
        return
    yield Check("config", State.OK, str(config or "defaults"))
    folder = Path(loaded.node.data_dir).expanduser().absolute()
    yield from of_disk(folder)
    for port in listening(loaded, plugins):
        yield of_port(port)
    for name, file in _certificate_files(loaded, plugins):
        for each in certificates(file):
            yield of_certificate(name, each.not_valid_after_utc, datetime.now(UTC))


def _plugins(source: ConfigSource) -> Sequence[LoadedPlugin]:
    host = PluginHost(source)
    host.load(strict=False)
    return host.enabled()


def of_limit(descriptors: int) -> Check:
    """`descriptors`: as many as the process may open; -1: any number."""
    found = "no limit" if descriptors < 0 else f"{descriptors:,} open files"
    if descriptors < 0 or descriptors >= DESCRIPTORS_MIN:
        return Check("limits", State.OK, found)
    advice = (
        "a connection and a segment that is read are a descriptor each: "
        f"ulimit -n {DESCRIPTORS_MIN}, or LimitNOFILE= of the systemd unit"
    )
    return Check("limits", State.WARNING, found, advice)


def of_clock(status: int | None) -> Check:
    """`status`: that of adjtimex(2); None: this system has none."""
    if status is None:
        return Check("clock", State.OK, "cannot be asked on this system")
    if not status & _UNSYNCHRONISED:
        return Check("clock", State.OK, "synchronised")
    advice = (
        "record timestamps, retention and schedules follow it: run systemd-timesyncd or chrony, on "
        "the host of a container"
    )
    return Check("clock", State.WARNING, "not synchronised", advice)


def _clock_status() -> int | None:
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes = 0: it only reads
    try:
        if ctypes.sizeof(ctypes.c_long) != 8 or ctypes.CDLL(None).adjtimex(timex) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return int.from_bytes(timex.raw[_STATUS_AT : _STATUS_AT + 4], "little")


def of_disk(folder: Path) -> Iterator[Check]:
    """Free space, and how long an fsync takes, of the folder or where it would be made."""
    place = next(each for each in (folder, *folder.parents) if each.is_dir())
    try:
        usage = shutil.disk_usage(place)
        yield of_space(folder, usage.free, usage.total)
        yield of_fsync(_fsync_times(place))
    except OSError as error:
        advice = f"give the node's user the right to write there, or set node.data_dir ({folder})"
        yield Check("disk", State.FAILING, f"{place}: {error.strerror}", advice)


def of_space(folder: Path, free: int, total: int) -> Check:
    """`free` and `total`: bytes."""
    found = f"{free / 1e9:,.1f} GB of {total / 1e9:,.1f} GB are free at {folder}"
    if free >= FREE_RATIO_MIN * total:
        return Check("disk", State.OK, found)
    advice = "a full disk refuses records: shorten retention, tier segments, or grow the disk"
    return Check("disk", State.WARNING, found, advice)


def of_fsync(times_s: Sequence[float]) -> Check:
    """`times_s`: of writes of 4 KiB with fsync, in seconds."""
    median_s = statistics.median(times_s)
    found = f"fsync takes {median_s * 1000:.1f} ms, {max(times_s) * 1000:.1f} ms at worst"
    if median_s < FSYNC_SLOW_S:
        return Check("fsync", State.OK, found)
    advice = "each acknowledgement waits for it: use a local SSD, not a network or SD card"
    return Check("fsync", State.WARNING, found, advice)


def _fsync_times(folder: Path) -> list[float]:
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_FSYNCS):
            begun_s = time.perf_counter()
            file.write(_WRITE)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begun_s)
    return times


def of_port(wanted: Listening) -> Check:
    """Whether the port can be opened now."""
    name, where = ".".join(map(str, wanted.place)), f"{wanted.host}:{wanted.port}"
    family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((wanted.host, wanted.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                advice = f"well if the node runs already; else set {name} or stop what has the port"
                return Check("ports", State.WARNING, f"{where} of {name} is in use", advice)
            advice = f"{name} needs an address of this machine and the right to open the port"
            return Check("ports", State.FAILING, f"{where} of {name}: {error.strerror}", advice)
    return Check("ports", State.OK, f"{where} of {name} is free")


def _certificate_files(
    config: Config, plugins: Sequence[LoadedPlugin]
) -> Iterator[tuple[str, str]]:
    """(setting, file), each file once."""
    seen = set[str]()
    roots = [(("meta",), config.meta), *((("plugins", one.name), one.settings) for one in plugins)]
    for root in roots:
        for place, section in sections(*root):
            for setting in ("tls_cert", "tls_ca"):
                file = getattr(section, setting, "")
                if file and file not in seen:
                    seen.add(file)
                    yield ".".join(map(str, (*place, setting))), str(Path(file).expanduser())


def of_certificate(name: str, until: datetime, now: datetime) -> Check:
    """`name`: the setting that names its file. `until`: the end of its validity."""
    left = until - now
    if left > EXPIRES_SOON:
        return Check("tls", State.OK, f"{name} is valid until {until:%Y-%m-%d}")
    advice = "put a new certificate in its place"
    if left <= timedelta(0):
        return Check("tls", State.FAILING, f"{name} expired on {until:%Y-%m-%d}", advice)
    return Check("tls", State.WARNING, f"{name} expires in {left.days} days", advice)
