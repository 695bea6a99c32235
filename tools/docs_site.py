"""What `mkdocs` does besides rendering: pages that only the repository has are linked there, and
formats and decisions are in the navigation, whatever there is of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
LISTED: Final = {"Formats": "formats", "Decisions": "decisions"}
_LINK: Final = re.compile(r"\]\(((?!\w+:)[^)#\s]+)")


def on_config(config: Any) -> Any:
    """Append a section for each folder of pages."""
    for title, folder in LISTED.items():
        pages = [str(page.relative_to(DOCS)) for page in sorted((DOCS / folder).glob("*.md"))]
        config["nav"].append({title: pages})
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Turn relative links that leave `docs/`, or name a folder of it, into links to the
    repository."""
    folder = (DOCS / page.file.src_uri).parent

    def replaced(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        if target.is_file() and target.is_relative_to(DOCS) or not target.is_relative_to(ROOT):
            return match[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"]({config['repo_url']}/{kind}/main/{target.relative_to(ROOT)}"

    return _LINK.sub(replaced, markdown)
