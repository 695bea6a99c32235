"""Kafka: KRaft nodes on loopback, of jars that Maven fetches once into `build/bench`."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # has no types of its own

from benchmarks.harness.declare import Missing
from benchmarks.harness.processes import end, wait_for
from benchmarks.sides.configured import filled, free_port

VERSION = "4.3.1"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>lakemq</groupId><artifactId>bench</artifactId><version>1</version>
<dependencies>{0}</dependencies></project>
"""
DEPENDENCY = """<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId>
<version>{2}</version>{3}</dependency>"""
FLUSHED = "log.flush.interval.messages=1\n"
KEPT = Path("build/bench")
MAVEN_S = 900


def fetched(name: str, dependencies: Sequence[tuple[str, ...]]) -> str:
    """A class path of what Maven fetches, kept under that name. Raises Missing."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise Missing("there is no mvn or no java (apt-get install maven)")
    folder = KEPT / name
    path = folder / "classpath"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(DEPENDENCY.format(*each) for each in dependencies)
        (folder / "pom.xml").write_text(POM.format(lines))
        words = ["mvn", "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=classpath"]
        run = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, timeout=MAVEN_S, check=False
        )
        if run.returncode:
            raise Missing(f"mvn: {(run.stdout + run.stderr).strip()[:300]}")
    return path.read_text().strip()


def classpath(version: str = VERSION) -> str:
    """Kafka's server and tools. Raises Missing."""
    names = (("kafka_2.13", version), ("kafka-tools", version))
    return fetched(
        f"kafka-{version}", [("org.apache.kafka", name, number, "") for name, number in names]
    )


def java(jars: str, folder: Path, *words: str) -> list[str]:
    return ["java", "-Xmx1g", f"-Dlog4j2.configurationFile={folder / 'kafka-log4j2.xml'}", "-cp",
            jars, *words]  # fmt: skip


@dataclass
class Broker:
    """One KRaft node, broker and controller in one process."""

    number: int
    port: int
    command: list[str]
    server: subprocess.Popen[bytes]

    @property
    def process(self) -> psutil.Process:
        """To read its CPU time from."""
        return psutil.Process(self.server.pid)

    def launch(self) -> None:
        """Start it again after it was killed."""
        self.server = _launched(self.command)

    def wait(self) -> None:
        """Until it listens. Raises Missing."""
        wait_for(self.port, self.server)


def _launched(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def bootstrap(found: Sequence[Broker]) -> str:
    """`host:port` of all of them, as Kafka's clients take them."""
    return ",".join(f"127.0.0.1:{each.port}" for each in found)


@contextlib.contextmanager
def brokers(jars: str, folder: Path, more: str, count: int) -> Iterator[list[Broker]]:
    """So many KRaft nodes of one cluster. Raises Missing when one does not start."""
    folder.mkdir(parents=True, exist_ok=True)
    filled("kafka-log4j2.xml", folder)
    ports = [(free_port(), free_port()) for _ in range(count)]
    voters = ",".join(f"{at}@127.0.0.1:{ports[at - 1][1]}" for at in range(1, count + 1))
    cluster = uuid.uuid4().hex[:22]
    found: list[Broker] = []
    try:
        for number, (port, controller) in enumerate(ports, 1):
            home = folder / f"node-{number}"
            home.mkdir()
            config = filled(
                "kafka.properties", home, number=number, voters=voters, port=port,
                controller=controller, logs=home / "logs",
            )  # fmt: skip
            config.write_text(config.read_text() + more)
            tool = ("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config))
            run = subprocess.run(
                java(jars, folder, *tool), capture_output=True, text=True, check=False
            )
            if run.returncode:
                raise Missing(f"kafka.tools.StorageTool: {run.stderr[-400:]}")
            command = java(jars, folder, "kafka.Kafka", str(config))
            found.append(Broker(number, port, command, _launched(command)))
        for broker in found:
            broker.wait()
        yield found
    finally:
        for broker in found:
            end(broker.server)


@contextlib.contextmanager
def alone(folder: Path, more: str = "") -> Iterator[Broker]:
    with brokers(classpath(), folder, more, 1) as (broker,):
        yield broker


AS_SHIPPED = partial(alone, more="")
FSYNCED = partial(alone, more=FLUSHED)
