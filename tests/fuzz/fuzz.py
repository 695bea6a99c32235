"""Coverage-guided fuzzing with atheris (libFuzzer), where it is installed: `pip install atheris`.

    python -m tests.fuzz.fuzz                              # every target, 60 s each, 2 at a time
    python -m tests.fuzz.fuzz --seconds 600 --jobs 1 mqtt  # targets whose names begin so
    python -m tests.fuzz.fuzz --here meta.log              # one, in this process

Inputs that reach new code are kept in `build/fuzz/<target>`; one that breaks something, or takes
long for its size, is written there as `crash-...` (`timeout-...`, `oom-...`). Mend what it broke
and put it into `tests/fuzz/corpus/<target>`, where every test run tries it: as a file, or as a line
of `found.hex`.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.registry import limited, targets

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
KEPT = ROOT / "build" / "fuzz"
_PACKAGES = ("lakemq",)
_BAD = ("crash-*", "timeout-*", "oom-*")


def kept_inputs(target: str) -> dict[str, bytes]:
    """Every kept input of a target, by name."""
    inputs: dict[str, bytes] = {}
    folder = CORPUS / target
    for file in sorted(folder.iterdir()) if folder.exists() else ():
        if file.suffix == ".hex":
            for number, line in enumerate(file.read_text().splitlines(), 1):
                inputs[f"{file.name}:{number}"] = bytes.fromhex(line)
        else:
            inputs[file.name] = file.read_bytes()
    return inputs


def fuzz_here(name: str, seconds: int) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=list(_PACKAGES)):
        target = targets(name.partition(".")[0])[name]
    for data in target.seeds:  # what is imported late must not count as the time of an input
        target.run(data)
    folder = KEPT / name
    folder.mkdir(parents=True, exist_ok=True)
    for data in (*target.seeds, *kept_inputs(name).values()):
        (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    options = [
        sys.argv[0],
        str(folder),
        f"-max_len={target.bytes_max}",
        "-timeout=60",
        f"-max_total_time={seconds}",
        "-rss_limit_mb=1536",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    atheris.Setup(options, limited(target))
    atheris.Fuzz()


def fuzz_apart(name: str, seconds: int) -> tuple[str, bool]:
    """Fuzz one target in a process of its own; its name, and whether nothing was found."""
    folder = KEPT / name
    folder.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{name}.log").open("wb") as log:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.fuzz", "--here", "--seconds", str(seconds), name],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    print(f"{name}: {'nothing found' if not ended.returncode else 'FOUND SOMETHING'}", flush=True)
    for line in _told(name):
        print(f"    {line}", flush=True)
    return name, not ended.returncode


def _told(name: str) -> Iterator[str]:
    """What the log of a target says of the end, and what was kept."""
    lines = (KEPT / f"{name}.log").read_text(errors="replace").splitlines()
    wanted = ("stat::number_of_executed_units", "SUMMARY", "Error", "Exception")
    for line in lines:
        words = line.strip()
        if any(each in words for each in wanted) and not words.startswith(("#", "File")):
            yield words[:200]
    for pattern in _BAD:
        for found in sorted((KEPT / name).glob(pattern)):
            yield str(found.relative_to(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="target", help="what their names begin with")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--here", action="store_true", help="one target, in this process")
    arguments = parser.parse_args()
    if arguments.here:
        fuzz_here(arguments.names[0], arguments.seconds)
        return
    wanted = [each for each in targets() if each.startswith(tuple(arguments.names) or "")]
    if not wanted:
        parser.error(f"no target begins so; there are {', '.join(targets())}")
    KEPT.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        ended = dict(pool.map(lambda name: fuzz_apart(name, arguments.seconds), wanted))
    broken = [name for name, good in ended.items() if not good]
    print(f"{len(ended)} targets, {len(broken)} with findings: {', '.join(broken) or 'none'}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
