"""A Spark session for the command line: checked beforehand, and quiet."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lakemq.spark_plugin.errors import ExportError, MissingDependency

if TYPE_CHECKING:
    from typing import TypeAlias

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    Spark: TypeAlias = SparkContext | SparkSession

JAVA_VERSION_MIN: Final = 17
_LOG4J: Final = Path(__file__).parent / "export" / "log4j2.properties"
_NOISE: Final = re.compile(
    r"Using incubator modules|Using Spark's default log4j|Setting default log level|"
    r"fork_posix\.cc|Setting Spark log level|To adjust logging level|Picked up _?JAVA_"
)


def check_installed(master: str | None = None) -> None:
    """MissingDependency, with what to do about it, unless pyspark, Arrow and what the master needs
    are there: Java, or the client of Spark Connect."""
    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependency(f"{package} is missing: pip install 'lakemq[spark]'")
    if remote_of(master):
        if importlib.util.find_spec("grpc_status") is None:
            raise MissingDependency("grpcio-status is missing: pip install 'pyspark[connect]'")
        return
    version = _java_version()
    if version is None:
        raise MissingDependency(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer and there is none: install a JRE "
            f"(Debian: apt install openjdk-{JAVA_VERSION_MIN}-jre-headless) or set JAVA_HOME"
        )
    if version < JAVA_VERSION_MIN:
        raise MissingDependency(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer; this is Java {version}. Set JAVA_HOME "
            "to a newer one"
        )


def _java_version() -> int | None:
    """Major version of the Java that Spark would start; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java or not shutil.which(java):
        return None
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def remote_of(master: str | None) -> str:
    """Address of the Spark Connect server that is meant; empty: Spark runs here."""
    if master:
        return master if master.startswith("sc://") else ""
    return os.environ.get("SPARK_REMOTE", "")


def context_of(spark: Spark) -> SparkContext | None:
    """What runs RDDs; None: a session of Spark Connect, which has none."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkAttributeError

    if isinstance(spark, SparkContext):
        return spark
    try:
        return spark.sparkContext
    except PySparkAttributeError:
        return None


def parallelism_of(spark: Spark) -> int:
    """How many tasks run at the same time."""
    from pyspark.sql import functions

    context = context_of(spark)
    if context is not None:
        return int(context.defaultParallelism)
    # Spark Connect tells by what it does
    parts = session_of(spark).range(10_000).select(functions.spark_partition_id())
    return int(parts.distinct().count())


def open_session(name: str, master: str | None = None) -> SparkSession:
    """The session of this process. What spark-submit or the environment set is kept; a session
    of our own runs on this machine, listens on loopback only and has no web page. `sc://host:port`
    is the session of a Spark Connect server."""
    check_installed(master)
    if remote := remote_of(master):
        return _connect(name, remote)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.config(map={**_settings(name, master)})
    with _without_noise(), _apart_from_sigterm():
        return builder.getOrCreate()


def open_spark(name: str, master: str | None = None, *, sql: bool = False) -> Spark:
    """As `open_session`; without `sql` of a Spark that runs here only its context, which is there
    some seconds before a session is: enough for RDDs."""
    if sql:
        return open_session(name, master)
    check_installed(master)
    if remote := remote_of(master):
        return _connect(name, remote)
    from pyspark import SparkConf, SparkContext

    conf = SparkConf().setAll(list(_settings(name, master).items()))
    with _without_noise(), _apart_from_sigterm():
        return SparkContext.getOrCreate(conf)


def session_of(spark: Spark) -> SparkSession:
    """The session, for SQL."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate() if isinstance(spark, SparkContext) else spark


def _settings(name: str, master: str | None) -> dict[str, str]:
    """Of a Spark that runs here, and what its environment needs."""
    from pyspark import SparkConf

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf()
    defaults = {
        "spark.master": master or "local[*]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    if (master or conf.get("spark.master", "local")).startswith("local["):
        defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    java_options = f"-Dlog4j2.configurationFile=file:{_LOG4J} " + (
        conf.get("spark.driver.extraJavaOptions", "") or ""
    )
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it prints what is raised here as well
    return {
        "spark.app.name": name,
        "spark.driver.extraJavaOptions": java_options.strip(),
        **{
            key: value
            for key, value in defaults.items()
            if not conf.contains(key) or (key == "spark.master" and master)
        },
    }


def _connect(name: str, remote: str) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    for each in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(each).disabled = True  # they print what is raised here as well
    try:
        spark = SparkSession.builder.remote(remote).appName(name).getOrCreate()
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        return spark
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0][:300]
        raise ExportError(f"no Spark Connect server answers at {remote}: {reason}") from None


class _Children:
    """What children that are forked by this process do before they become another program."""

    def __init__(self) -> None:
        self.ignore_sigterm = False
        self.registered = False

    def forked(self) -> None:
        """Called in each child that runs Python code before its program."""
        if self.ignore_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


_children = _Children()


@contextmanager
def _apart_from_sigterm() -> Iterator[None]:
    """Have the JVM ignore SIGTERM, as it ignores Ctrl-C. Service managers send it to all processes
    of a service at once, and the driver still has a commit to finish; the JVM ends with it."""
    if not _children.registered:
        os.register_at_fork(after_in_child=_children.forked)
        _children.registered = True
    _children.ignore_sigterm = True
    try:
        yield
    finally:
        _children.ignore_sigterm = False


@contextmanager
def _without_noise() -> Iterator[None]:
    """Take the JVM's greetings out of its standard error; all that it says otherwise stays.

    The JVM inherits a pipe; a thread copies it to our standard error for as long as the JVM lives.
    """
    try:
        error = os.dup(2)
    except OSError:  # no standard error: nothing to keep clean
        yield
        return
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    threading.Thread(target=_copy, args=(reader, error), daemon=True).start()
    try:
        yield
    finally:
        os.dup2(error, 2)


def _copy(reader: int, error: int) -> None:
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            if not _NOISE.search(line.decode(errors="replace")):
                os.write(error, line)
