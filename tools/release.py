"""Before a release: version, tag and changelog agree, and a version is released once.

`python -m tools.release check [TAG]` ends with one sentence if they don't; without a tag, `v` and
the version is meant. `python -m tools.release notes` prints the version's section of the changelog.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import lakemq

ROOT = Path(__file__).parents[1]
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
"""Of PEP 440, what is released here."""


def notes(changelog: str, version: str) -> str:
    """The text below the heading of a version; "" if there is none."""
    found = re.search(
        rf"^## {re.escape(version)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    return found[1].strip() if found else ""


def problems(version: str, tag: str, changelog: str, tags: dict[str, str], head: str) -> list[str]:
    """What keeps `version` from being released as `tag`. `tags`: name -> commit."""
    found = []
    if not _VERSION.fullmatch(version):
        found.append(f"lakemq.__version__ is {version!r}: it must be MAJOR.MINOR.PATCH")
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, lakemq.__version__ is {version}: it must be v{version}")
    if tags.get(tag, head) != head:
        found.append(f"the tag {tag} is of another commit: a version is released once")
    if not notes(changelog, version):
        found.append(f"CHANGELOG.md has no section '## {version}' with what has changed")
    if notes(changelog, "Unreleased"):
        found.append(
            "CHANGELOG.md has entries under Unreleased: move them to the version's section"
        )
    return found


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def main(words: list[str]) -> None:
    version = lakemq.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if words == ["notes"]:
        sys.stdout.write(f"{notes(changelog, version)}\n")
    elif words[:1] == ["check"] and len(words) <= 2:
        tag = words[1] if len(words) == 2 and words[1] else f"v{version}"
        tags = {name: _git("rev-list", "-n", "1", name) for name in _git("tag", "-l", tag).split()}
        found = problems(version, tag, changelog, tags, _git("rev-parse", "HEAD"))
        if changed := _git("status", "--porcelain", "--untracked-files=no"):
            found.append(f"there are changes that are not committed: {changed.splitlines()[0]}")
        if found:
            sys.exit("\n".join(found))
        sys.stdout.write(f"{version} can be released as {tag}\n")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
