"""docs/clients.md: its programs in other languages are the ones that the tests run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_BLOCK: Final = re.compile(r"(<!-- (examples/\S+) -->\n```\w+\n).*?^```$", re.DOTALL | re.MULTILINE)


def clients_page() -> str:
    """The page as it is, with each block behind a comment that names a file being that file."""

    def filled(match: re.Match[str]) -> str:
        return f"{match[1]}{(ROOT / match[2]).read_text()}```"

    return _BLOCK.sub(filled, (ROOT / "docs/clients.md").read_text())
