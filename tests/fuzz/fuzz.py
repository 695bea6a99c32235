"""Coverage-guided fuzzing with atheris (libFuzzer), where it is installed: `pip install atheris`.

    python -m tests.fuzz.fuzz codec --seconds 120
    python -m tests.fuzz.fuzz connection --seconds 120

Inputs that reach new code are kept in `build/fuzz/<target>`; one that breaks something is written
there as `crash-...`. Put it into `tests/fuzz/corpus/<target>`, where every test run tries it, and
mend what it broke. Begins with what lies in that folder; `found.hex` there holds, one a line, what
earlier runs found.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"


def kept_inputs(target: str) -> dict[str, bytes]:
    """Every kept input of a target, by name."""
    inputs: dict[str, bytes] = {}
    for file in sorted((CORPUS / target).iterdir()):
        if file.suffix == ".hex":
            for number, line in enumerate(file.read_text().splitlines(), 1):
                inputs[f"{file.name}:{number}"] = bytes.fromhex(line)
        else:
            inputs[file.name] = file.read_bytes()
    return inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("target", choices=["codec", "connection", "proxy"])
    parser.add_argument("--seconds", type=int, default=60)
    arguments = parser.parse_args()
    try:
        import atheris
    except ModuleNotFoundError:
        raise SystemExit("atheris is not installed: pip install atheris") from None
    with atheris.instrument_imports(include=["plugins.mqtt"]):
        from tests.fuzz.targets import TARGETS
    kept = ROOT / "build" / "fuzz" / arguments.target
    kept.mkdir(parents=True, exist_ok=True)
    for data in kept_inputs(arguments.target).values():
        (kept / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    options = [
        sys.argv[0], str(kept), "-max_len=4096", "-timeout=10",
        f"-max_total_time={arguments.seconds}", "-rss_limit_mb=1024",
        f"-artifact_prefix={kept}/", "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup(options, TARGETS[arguments.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
