"""A dashboard in a process of its own, and who visits it: over HTTP, or in a real browser."""

from __future__ import annotations

import html
import http.client
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode, urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT: Final = Path(__file__).parents[3]
AXE: Final = ROOT / "build/dashboard-npm/node_modules/axe-core/axe.min.js"
SCRIPTS: Final = ROOT / "plugins/admin/dashboard/static/vendor/htmx.min.js"
CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def dashboard_of(admin: str, *arguments: str) -> Iterator[str]:
    """URL of a dashboard that asks this admin API."""
    words = [sys.executable, "-m", "lakemq", "dashboard", "--admin", admin, "--port", "0"]
    process = subprocess.Popen(
        [*words, *arguments], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("dashboard "), line
        yield line.split()[1]
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


class Answer:
    """Of one request."""

    def __init__(self, status: int, headers: Mapping[str, str], body: str) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def text(self) -> str:
        """What a reader sees, in one line."""
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", self.body)).split())


class Visitor:
    """A browser without scripts: keeps its cookie, and the token of the last form."""

    def __init__(
        self, url: str, source: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """`source`: address that it comes from. `headers`: of all its requests."""
        self._at = urlsplit(url).netloc
        self._source = (source, 0) if source else None
        self._headers = headers or {}
        self.cookie = ""
        self.csrf = ""
        self.here = "/"

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """No redirect is followed."""
        answer = self._ask("GET", path, None, headers)
        found = re.search(r'name="csrf" value="([^"]+)"', answer.body)
        if found:
            self.csrf = found[1]
        self.here = path
        return answer

    def post(
        self, path: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> Answer:
        """As the form of the page that was shown last."""
        body = urlencode({"csrf": self.csrf, **form})
        sent = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Referer": f"http://{self._at}{self.here}",
            **(headers or {}),
        }
        return self._ask("POST", path, body, sent)

    def after(self, path: str, form: Mapping[str, str]) -> Answer:
        """The page that a form leads to."""
        answer = self.post(path, form)
        assert answer.status == 303, answer.text
        return self.get(answer.headers["location"])

    def log_in(self, name: str) -> Answer:
        """As a user of `tests.support.node.users`."""
        return self.post("/login", {"username": name, "password": f"{name}'s password"})

    def _ask(
        self, method: str, path: str, body: str | None, headers: Mapping[str, str] | None
    ) -> Answer:
        connection = http.client.HTTPConnection(self._at, timeout=30, source_address=self._source)
        sent = {"Cookie": self.cookie, **self._headers, **(headers or {})}
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            if "set-cookie" in found:
                self.cookie = found["set-cookie"].split(";")[0]
            return Answer(answer.status, found, answer.read().decode())
        finally:
            connection.close()


def need_browser() -> None:
    """Skips where Chromium or the fetched scripts are missing."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    if not (SCRIPTS.is_file() and AXE.is_file()):
        pytest.skip("the scripts of third parties are missing: make dashboard-assets")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium's own sandbox needs rights that containers do not give.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
