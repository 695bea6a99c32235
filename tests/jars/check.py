"""Do Delta Lake's and Iceberg's own Spark runtimes read what exports write? `make test-jars`.

Gets their jars from Maven Central and a Spark that they support from PyPI, each once, into
`.venv-jars`. Says so and exits with 2 where Maven or PyPI can't be reached.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lakemq.broker_core.api.types import Columns
from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.task_results import TaskResult
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.tables.target import Target
from lakemq.spark_plugin.source import broker_reader as journal
from tests.support.memory_journal import MemoryJournal

HERE = Path(__file__).parent
HOME = Path(".venv-jars")
JARS = HOME / "jars"
PYTHON = HOME / "bin" / "python"
EXPECTED_JARS = 3


def prepare() -> None:
    """The jars and their Spark. Exits with 2 when they can't be had."""
    if not PYTHON.exists():
        venv.create(HOME, with_pip=True)
    installed = subprocess.run([PYTHON, "-c", "import pyspark"], capture_output=True, check=False)
    if installed.returncode:
        _get(
            [str(PYTHON), "-m", "pip", "install", "-q", "-r", str(HERE / "requirements.txt")],
            "PyPI",
        )
    if len(list(JARS.glob("*.jar"))) < EXPECTED_JARS:
        _get(["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies",
              f"-DoutputDirectory={JARS.absolute()}"], "Maven Central")  # fmt: skip


def _get(command: list[str], where: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        problem = "" if done.returncode == 0 else (done.stdout + done.stderr).strip()[-500:]
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        print(f"SKIPPED: {where} can't be reached, so nothing was tested: {problem}")
        sys.exit(2)


def run_here(tasks: Sequence[WriteTask]) -> list[TaskResult]:
    return [result for task in tasks for result in write_task.run(task)]


def write(target: Target, journal_: MemoryJournal) -> None:
    """Two commits; the second one adds a column and lets others grow. Then compaction."""

    def export(**settings: Any) -> None:
        exporter = make_exporter(
            ExportSettings(
                "memory", "t", target, "e", format="json", evolve="widen", partition_by="room",
                value_schema="n int, room string, price decimal(5,2)", compact_files=1, **settings
            ),
            run_here,
        )  # fmt: skip
        exporter.start()
        while exporter.step():
            exporter.compact()
        exporter.close()

    export()


def values(first: int, count: int, large: bool) -> Columns:
    rows = [
        {"n": n + (2**40 if large else 0), "room": f"r{n % 2}", "price": n + 0.25}
        | ({"place": {"x": n}} if large else {})
        for n in range(first, first + count)
    ]
    return Columns([json.dumps(row).encode() for row in rows])


def expected() -> list[dict[str, Any]]:
    return [
        {
            "partition": partition,
            "offset": n,
            "n": n + (2**40 if n >= 5 else 0),
            "room": f"r{n % 2}",
            "x": n if n >= 5 else None,
            "price": f"{n}.25",
        }
        for partition in range(2)
        for n in range(10)
    ]


def main() -> None:
    prepare()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        memory = MemoryJournal()
        journal._clients["memory"] = memory  # type: ignore[assignment]  # it has the same face
        memory.create_topic("t", 2)
        (folder / "warehouse").mkdir()
        catalog = {
            "name": "lake",
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }
        delta = Target("delta", path=str(folder / "delta"))
        iceberg = Target("iceberg", table="ns.t", catalog=catalog)
        for first, large in ((0, False), (5, True)):
            for partition in range(2):
                memory.append("t", partition, values(first, 5, large))
            for target in (delta, iceberg):
                write(target, memory)
        check(read(delta, f"sqlite:{folder}/catalog.db", catalog["warehouse"]))


def read(delta: Target, uri: str, warehouse: str) -> dict[str, Any]:
    done = subprocess.run(
        [PYTHON.absolute(), HERE / "read_tables.py", JARS.absolute(), delta.path, uri, warehouse,
         "ns.t"],
        capture_output=True, text=True, check=False, cwd=HERE,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        if line.startswith("ANSWER "):
            return dict(json.loads(line.removeprefix("ANSWER ")))
    sys.exit(f"the tables can't be read:\n{done.stderr[-4000:]}")


def check(answer: dict[str, Any]) -> None:
    """Exits with 1, naming what differs."""
    for name in ("delta", "iceberg"):
        found = answer[name]
        if found["rows"] != expected():
            sys.exit(f"{name}: its runtime reads {found['rows']}, not {expected()}")
        if found["skipped"] != 2 or found["types"]["n"] != "bigint":
            sys.exit(f"{name}: {found['skipped']} rows behind a filter, types {found['types']}")
        print(
            f"{name}: its own runtime on Spark {answer['spark']} reads all {len(found['rows'])} "
            f"rows; columns {', '.join(found['types'])}"
        )
    print(
        f"delta history: {', '.join(answer['history'])}; iceberg snapshots: {answer['snapshots']}"
    )


if __name__ == "__main__":
    main()
