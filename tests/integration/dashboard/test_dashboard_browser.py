"""Goal: in a real browser, pages work, live and with keys, and everybody can use them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import lakemq
from lakemq.plugins.native.wire.exports import ExportReport
from tests.support.node.dashboard import AXE, chromium, dashboard_of, need_browser
from tests.support.node.node import PORTS_FREE, NodeProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PAGES = (
    "/", "/topics", "/topics/air", "/messages?topic=air", "/clients", "/bans", "/groups",
    "/groups/readers?topic=air&to=earliest", "/cluster",
    "/access?operation=read&resource=topic:air", "/transactions", "/plugins",
    "/audit", "/topics/none", "/login", "/queues/workers/air?node=node-1&partition=0&offset=0",
    "/schemas/reading", "/schema-new", "/schedules/later?node=node-1",
    "/explain?topic=air&partition=0&offset=1", "/retained", "/bridges", "/exports",
    "/ledger", "/ledger-devices", "/keys", "/partitions", "/queues", "/no-such-page",
)  # fmt: skip


LONG = "plant.hall-north.sensor-readings.air-quality"
BRIDGE = """
[[plugins.bridge.links]]
name = "cloud-of-the-company"
url = "mqtt://127.0.0.1:1"
client_id = "lakemq-plant-7-hall-north"
[[plugins.bridge.links.rules]]
direction = "out"
filter = "plant/#"
remote_prefix = "site-7/"
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    need_browser()
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def url(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard of a node with a topic, whose records a group has read."""
    with NodeProcess(tmp_path_factory.mktemp("browser"), PORTS_FREE + BRIDGE) as node:
        with lakemq.connect(node.native, timeout_s=10) as client:
            client.create_topic("air")
            for number in range(3):
                client.send("air", b'{"co": %d}' % number, key=b"station")
            client.create_topic("dead")
            told = ExportReport(
                "s3://company-lakehouse-production/bronze/hall-north/sensor-readings-air-quality",
                "iceberg", 4_711, 12_000_000, 3, 1_500_000_000, 800,
            )  # fmt: skip
            client.reset_offsets(
                "export.sensor-readings-to-the-lake",
                {lakemq.TopicPartition("air", 0): 1}, metadata=told.to_text(),
            )  # fmt: skip
            client.create_topic(LONG, config={"ledger": "device=$.by.serial; sequence=$.by.seq"})
            for number in (1, 2, 5):
                by = {"serial": "urn:dev:ops:32473-refrigerator-5002-hall-north", "seq": number}
                client.send(LONG, json.dumps({"by": by}).encode())
            client.admin.alter_queue("workers", "air", dead_letter="dead")
            client.schemas.register("reading", "json-schema", '{"type": "object"}')
            client.schedules.send("air", b"x", delay=timedelta(hours=1), schedule_id="later")
            with client.subscribe("air", group="readers", start="earliest") as consumer:
                for _ in consumer:
                    consumer.commit()
                    break
        with dashboard_of(node.addresses["admin"]) as url:
            yield url


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    """A page that fails its test for errors of scripts, and for what its policy forbids."""
    said: list[str] = []
    context = browser.new_context(base_url=url, viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.on("pageerror", lambda error: said.append(str(error)))
    # Chromium says each answer of 404; one of the pages is that.
    page.on("console", lambda line: said.append(line.text) if "404" not in line.text else None)
    page.set_default_timeout(20_000)
    yield page
    context.close()
    assert said == []


SEEN = ("color-contrast", "scrollable-region-focusable", "target-size")
"""Rules of axe that are about how a page looks, so about its width and theme."""


def found_by_axe(page: Page, *rules: str) -> list[Any]:
    """What breaks WCAG or good practice: rule and elements. `rules`: these alone; none: all."""
    asked = {"runOnly": list(rules)} if rules else {}
    found: list[Any] = page.evaluate("asked => axe.run(asked)", asked)["violations"]
    return [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found]


@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing(page: Page, path: str) -> None:
    """Wide and light, narrow and dark: each width and each theme once."""
    page.goto(path)
    if path == "/":
        page.wait_for_selector("html[data-drawn]")
    # By the debugger: the page's own policy lets no script of others in.
    session = page.context.new_cdp_session(page)
    session.send("Runtime.evaluate", {"expression": AXE.read_text()})
    for width, theme, rules in ((1440, "light", ()), (390, "dark", SEEN)):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        assert found_by_axe(page, *rules) == []
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"the page is {wide} px wide"


WIDER = """() => [document.documentElement, ...document.querySelectorAll(".scroll, pre")]
  .filter(each => each.scrollWidth > each.clientWidth)
  .map(each => [each.tagName, each.ariaLabel, each.scrollWidth, each.clientWidth])"""
"""What can be scrolled sideways."""


@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_scrolled_sideways(page: Page, path: str) -> None:
    """What does not fit as a table is shown as cards: nowhere in a wide window."""
    page.goto(path)
    if path.startswith("/ledger"):
        while not page.get_by_text(LONG).count():  # it is counted within a second
            page.goto(path)
    for width in (1440, 1024, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("() => new Promise(requestAnimationFrame)")
        assert page.evaluate(WIDER) == [], f"{width} px"
        cards = page.locator(".cards")
        if width == 1440:
            assert cards.count() == 0
    if path == "/exports":
        cell = cards.get_by_text("12,000,000", exact=True)
        assert cell.get_attribute("data-label") == "Rows of the last"
        page.set_viewport_size({"width": 1440, "height": 900})
        page.wait_for_selector(".scroll:not(.cards)")


def test_plots_and_tiles_are_live(page: Page) -> None:
    page.goto("/")
    page.wait_for_selector("html[data-drawn]")
    assert page.locator(".chart canvas").count() == 4
    page.get_by_text("live").wait_for()
    page.locator("[data-live=stored]", has_text=re.compile(r"\d")).wait_for()
    page.locator("[data-live=mqtt_in]", has_text="0").wait_for()


def test_a_search_filters_as_it_is_typed(page: Page) -> None:
    page.goto("/topics")
    page.keyboard.press("/")
    page.keyboard.type("nothing-like-it")
    page.get_by_text("Nothing here fits").wait_for()
    assert page.evaluate("document.activeElement.id") == "q"
    assert "/topics?q=nothing-like-it" in page.url
    page.reload()
    page.get_by_text("Nothing here fits").wait_for()


def test_sorting_keeps_the_focus(page: Page) -> None:
    page.goto("/topics")
    page.locator("#by-partitions").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("th[aria-sort=descending]")
    assert page.evaluate("document.activeElement.id") == "by-partitions"


def test_keys_lead_through_pages(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/air")
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 390, "height": 900})
    assert not page.get_by_role("link", name="Audit").is_visible()
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Audit").click()
    page.wait_for_url("**/audit")


def test_what_is_published_is_followed(page: Page, browser: Browser, url: str) -> None:
    page.goto("/messages?topic=air")
    page.get_by_role("button", name="Follow new messages").click()
    page.get_by_text("Following").wait_for()
    other = browser.new_page(base_url=url)
    other.goto("/messages?topic=air")
    other.get_by_text("Publish a message").click()
    other.get_by_label("Value", exact=True).fill('{"co": "<b>new</b>"}')
    other.get_by_role("button", name="Publish").click()
    other.get_by_text("Stored in air").wait_for()
    other.close()
    page.get_by_text('"<b>new</b>"').wait_for()


def test_the_theme_is_kept(page: Page) -> None:
    page.goto("/topics")
    before = page.evaluate("document.documentElement.dataset.theme")
    page.get_by_role("button", name="Theme").click()
    page.goto("/groups")
    assert page.evaluate("document.documentElement.dataset.theme") != before


def test_what_is_cut_is_read_by_the_keyboard(page: Page) -> None:
    page.goto("/plugins")
    text = page.locator("td.j pre.cut").first
    before = text.evaluate("each => each.clientHeight")
    text.focus()
    assert text.evaluate("each => each.clientHeight") > before
