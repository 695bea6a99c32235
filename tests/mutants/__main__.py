"""Plant small bugs in pure modules and see whether their own tests notice.

    python -m tests.mutants                              # a sample of 20 bugs for each module
    python -m tests.mutants --sample 0 plugins/journal   # all bugs, of modules whose paths begin so
    python -m tests.mutants --keep --sample 0 ...        # note what survives as known

Everything happens in a copy in a temporary folder. `tests/data/mutants.json` holds the bugs that
are known to survive, by module, so that a module's tests only get better: a bug that survives and
is not among them fails the run, whatever the sample. Of a module that is not in it yet, survivors
are told and nothing more: `--keep --sample 0` takes it in.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from tests.mutants.modules import TESTS
from tests.mutants.operators import Mutant, mutants

ROOT: Final = Path(__file__).parents[2]
KNOWN: Final = ROOT / "tests" / "data" / "mutants.json"
_COPIED: Final = ("broker_core", "lakemq", "meta_service", "plugins", "pyspark_lakemq",
                  "spark_plugin", "tests", "examples", "docs", "pyproject.toml")  # fmt: skip
_HEAVY: Final = ("numpy", "hypothesis", "grpc", "msgpack", "pydantic", "google.protobuf",
                 "cryptography.x509", "jwt", "argon2", "zstandard", "lz4.frame", "pytest_asyncio",
                 "google_crc32c", "xdist", "pytest_timeout", "jsonschema", "fastavro")  # fmt: skip
"""Imported once: each bug is tried in a process that is split off from this one."""
_EXAMPLES: Final = 40
"""Of a property, where its test does not say how many."""
_TIMES_LONGER: Final = 6
_LEAST_S: Final = 20


def copied(folder: Path) -> Path:
    """The sources, where they may be changed."""
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".hypothesis", "node_modules")
            shutil.copytree(source, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    return folder


def passes(copy: Path, tests: Sequence[str], limit_s: float) -> bool:
    """Whether the tests pass in the copy, in a process of their own. One that takes too long
    fails."""
    child = os.fork()
    if not child:
        os.setsid()
        os._exit(_run_tests(copy, tests))
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _run_tests(copy: Path, tests: Sequence[str]) -> int:
    os.chdir(copy)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    for name in [name for name in sys.modules if name.partition(".")[0] in (*_COPIED, "tests")]:
        del sys.modules[name]
    sys.path[:] = [str(copy), *(each for each in sys.path if Path(each or ".").resolve() != ROOT)]
    sys.dont_write_bytecode = True
    os.environ["PYTHONPATH"] = str(copy)
    os.environ.setdefault("LAKEMQ_SEEDS", "20")
    settings.register_profile("mutants", max_examples=_EXAMPLES, deadline=None, database=None)
    settings.load_profile("mutants")
    options = [
        "-x",
        "-q",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        "--hypothesis-seed=0",
    ]
    return int(pytest.main([*options, *tests]))


def try_module(copy: Path, module: str, chosen: Sequence[Mutant]) -> list[Mutant]:
    """The bugs that survive. AssertionError when the tests fail without any."""
    target, tests = copy / module, TESTS[module]
    original = target.read_text()
    began = time.monotonic()
    assert passes(copy, tests, 600), f"{module}: its tests fail without any bug"
    limit_s = max(_LEAST_S, _TIMES_LONGER * (time.monotonic() - began))
    survivors = []
    try:
        for each in chosen:
            target.write_text(each.source)
            if passes(copy, tests, limit_s):
                survivors.append(each)
    finally:
        target.write_text(original)
    return survivors


def known_survivors() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    return found


def keep(module: str, tried: Sequence[Mutant], survivors: Sequence[Mutant]) -> None:
    """Note which bugs survive, of those that were tried; others stay as they were noted."""
    known = known_survivors()
    names = {each.name for each in tried}
    possible = {each.name for each in mutants((ROOT / module).read_text())}
    stay = [name for name in known.get(module, []) if name in possible - names]
    known[module] = sorted([*stay, *(each.name for each in survivors)])
    KNOWN.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("modules", nargs="*", help="what their paths begin with")
    parser.add_argument("--sample", type=int, default=20, help="bugs for each module; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="which sample")
    parser.add_argument("--keep", action="store_true", help="note survivors as known")
    arguments = parser.parse_args()
    for name in _HEAVY:
        importlib.import_module(name)
    known, fresh = known_survivors(), 0
    with tempfile.TemporaryDirectory(prefix="lakemq-mutants-") as folder:
        copy = copied(Path(folder))
        for module in TESTS:
            if not module.startswith(tuple(arguments.modules) or ""):
                continue
            possible = list(mutants((ROOT / module).read_text()))
            count = min(arguments.sample or len(possible), len(possible))
            chosen = random.Random(f"{arguments.seed} {module}").sample(possible, count)
            survivors = try_module(copy, module, chosen)
            print(f"{module}: {count - len(survivors)} of {count} killed", flush=True)
            if arguments.keep:
                keep(module, chosen, survivors)
                continue
            for each in survivors:
                if each.name not in known.get(module, []):
                    fresh += module in known
                    print(f"    survives, line {each.line}: {each.name}", flush=True)
    if fresh:
        raise SystemExit(f"{fresh} bugs survive that are not known to")


if __name__ == "__main__":
    main()
