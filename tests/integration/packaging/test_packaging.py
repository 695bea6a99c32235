"""Goal: the broker alone installs without Spark, starts from a wheel, and says what is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from lakemq.plugins.mqtt.wire import codec
from tests.support.node.node import NodeProcess
from tests.support.platforms.compiled import is_compiled

ROOT = Path(__file__).parents[3]
COMPILED = is_compiled(codec)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a fresh environment that holds `pip install lakemq` and no extra."""
    folder = tmp_path_factory.mktemp("packaging")
    if COMPILED:
        (wheel,) = ROOT.glob("dist/lakemq-*.whl")
    else:
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT))
        (wheel,) = folder.glob("lakemq-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    packages = {name for name in tops if not name.endswith(".dist-info")}
    libraries = {name for name in packages if "__mypyc." in name}
    assert len(libraries) == COMPILED
    packages -= libraries
    assert {top for top in tops if f"{top}/py.typed" in names} == packages
    assert packages == {"lakemq", "pyspark_lakemq"}
    assert len(names) == len(set(names))
    venv.create(folder / "venv", with_pip=True)
    bin_folder = folder / "venv" / "bin"
    constraints = str(ROOT / "constraints.txt")
    run(str(bin_folder / "pip"), "install", "-q", "-c", constraints, str(wheel))
    return bin_folder


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(COMPILED, reason="what a compiler makes depends on where it runs")
def test_a_commit_has_one_wheel(tmp_path: Path) -> None:
    """Whoever builds it, when and where: from a checkout or from the source archive."""
    built = tmp_path / "checkout"
    build(ROOT, built, "wheel", "sdist")
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("lakemq-*")
    for path in source.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (2e9, 2e9))
    again = tmp_path / "archive"
    build(source, again, "wheel")
    (one,), (other,) = built.glob("*.whl"), again.glob("*.whl")
    assert one.read_bytes() == other.read_bytes()


def build(source: Path, to: Path, *targets: str) -> None:
    kinds = [word for target in targets for word in ("-t", target)]
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(to), *kinds]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(
        words, cwd=source, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(300)
def test_no_spark_is_installed(installed: Path) -> None:
    names = run(str(installed / "pip"), "list", "--format", "freeze").lower()
    assert not re.search(r"^(pyspark|py4j|pyarrow|deltalake|pyiceberg|pandas)==", names, re.M)


@pytest.mark.timeout(300)
def test_a_broker_needs_no_pytest(installed: Path) -> None:
    """`lakemq.testing` is in the wheel, and says which extra it needs."""
    words = (str(installed / "python"), "-c", "import lakemq.testing")
    said = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/").stderr
    assert "lakemq.testing needs pytest: pip install 'lakemq[testing]'" in said


@pytest.mark.timeout(300)
def test_the_installed_broker_runs(installed: Path, tmp_path: Path) -> None:
    python = str(installed / "python")
    with NodeProcess(tmp_path, python=python, cwd=tmp_path) as node:
        at = ("--bootstrap", node.native)
        command = str(installed / "lakemq")
        run(command, "topic", "create", "t", *at)
        run(command, "produce", "t", "--value", "x", *at)
        assert run(command, "consume", "t", *at) == "x\n"
    run(command, "proto", str(tmp_path / "proto"))
    assert (tmp_path / "proto/lakemq/native/v1/native.proto").is_file()


@pytest.mark.timeout(300)
def test_folders_named_like_ours_beside_a_script_change_nothing(
    installed: Path, tmp_path: Path
) -> None:
    for name in ("plugins", "broker_core", "meta_service", "spark_plugin"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the folder of the user')")
    script = tmp_path / "script.py"
    script.write_text("import lakemq, lakemq.node\nprint(lakemq.Client.__module__)\n")
    assert run(str(installed / "python"), str(script)).startswith("lakemq.plugins.native.sdk")
    assert run(sys.executable, str(script)).startswith("lakemq.plugins.native.sdk")


@pytest.mark.timeout(300)
def test_export_without_spark_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(installed / "lakemq"), "export", "--topic", "t", "--to", "delta",
         "--path", str(tmp_path / "table")],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode != 0
    assert "pip install 'lakemq[spark]'" in done.stderr and done.stderr.count("\n") == 1
