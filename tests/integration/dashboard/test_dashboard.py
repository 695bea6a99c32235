"""Goal: the dashboard shows and does what its user may, and nothing for pages of other sites."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import lakemq
from tests.support.node.dashboard import Visitor, dashboard_of
from tests.support.node.node import PORTS_FREE, NodeProcess, unique


def test_without_a_login_nothing_is_shown(url: str) -> None:
    visitor = Visitor(url)
    refused = visitor.get("/topics?q=air")
    assert (refused.status, refused.headers["location"]) == (303, "/login?next=%2Ftopics%3Fq%3Dair")
    assert visitor.get("/events").status == 401
    assert visitor.post("/topics", {"name": "t"}).status == 401
    assert "Log in" in visitor.get("/login").text
    wrong = visitor.post("/login", {"username": "root", "password": "x"})
    assert wrong.status == 401 and "Not logged in" in wrong.text
    for name, password in (("root", ""), ("", "x"), ("root:root's", "password")):
        assert visitor.post("/login", {"username": name, "password": password}).status == 400
    long = visitor.post("/login", {"username": "root", "password": "x" * 20_000})
    assert long.status == 400 and "16384 bytes" in long.text


def test_a_login_lasts_and_ends(url: str) -> None:
    visitor = Visitor(url)
    answer = visitor.log_in("root")
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=Strict", "Max-Age=43200"))
    assert "root" in visitor.get("/").text
    assert visitor.post("/logout", {}).status == 303
    assert visitor.get("/").status == 303


def test_a_login_leads_to_pages_of_this_site_alone(url: str) -> None:
    visitor = Visitor(url)
    form = {"username": "root", "password": "root's password"}
    for path, to in (("/audit", "/audit"), ("//evil.example", "/"), ("/\\evil.example", "/")):
        answer = visitor.post("/login", {**form, "next": path})
        assert answer.headers["location"] == to


def test_pages_of_other_sites_change_nothing(url: str, root: Visitor) -> None:
    root.get("/topics")
    form = {"name": "forged"}
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"},
                    {"Sec-Fetch-Site": "cross-site"}):  # fmt: skip
        assert root.post("/topics", form, headers).status == 403
    assert root.post("/topics", {**form, "csrf": "x"}).status == 403
    other = Visitor(url)
    other.log_in("root")
    other.get("/topics")
    assert root.post("/topics", {**form, "csrf": other.csrf}).status == 403
    assert root.get("/topics", {"Host": "evil.example"}).status == 421
    assert "forged" not in root.get("/topics").text
    headers = root.get("/topics").headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]


def test_a_topic_from_its_creation_to_its_end(root: Visitor) -> None:
    topic = unique("plant.line")
    root.get("/topics")
    page = root.after("/topics", {"name": topic, "partitions": "2"})
    assert f"Topic {topic} is created." in page.text
    root.get(f"/messages?topic={topic}")
    form = {
        "topic": topic,
        "key": "<k>",
        "value": '{"a": 1}',
        "headers": "unit: C",
        "partition": "1",
    }
    page = root.after("/messages", form)
    assert "Stored in" in page.text and '{ "a": 1 } JSON' in page.text and "unit: C" in page.text
    assert "<k>" in page.text and "<k>" not in page.body
    at = f"/messages?topic={topic}&partition=1"
    assert "1 messages of 1" in root.get(f"{at}&key=%3Ck%3E&header=unit%3DC").text
    assert "None of those has this key" in root.get(f"{at}&key=other").text
    assert "You asked for offset 9,000." in root.get(f"{at}&from=offset&at=9000").text
    assert "is no time" in root.get(f"{at}&from=time&at=soon").text

    page = root.get(f"/topics/{topic}")
    changed = {"was_retention_ms": "604800000", "retention_ms": "60000"}
    page = root.after(f"/topic-settings/{topic}", changed)
    assert "Changed: retention_ms." in page.text and "Kept for 1 min" in page.text
    assert "takes a whole number" in root.after(
        f"/topic-settings/{topic}", {"was_retention_ms": "60000", "retention_ms": "1h"}
    ).text  # fmt: skip
    assert f"type the name, {topic}" in root.after(f"/topic-delete/{topic}", {"confirm": "x"}).text
    assert "is deleted." in root.after(f"/topic-delete/{topic}", {"confirm": topic}).text
    assert root.get(f"/topics/{topic}").status == 404
    assert topic in root.get("/audit").text


def test_lists_are_sorted_searched_and_saved(root: Visitor, client: lakemq.SyncClient) -> None:
    stem = unique("sorted")
    for number in range(3):
        client.create_topic(f"{stem}-{number}", partitions=number + 1)
    page = root.get(f"/topics?q={stem}&sort=-partitions")
    assert page.body.index(f"{stem}-2") < page.body.index(f"{stem}-0")
    assert 'aria-sort="descending"' in page.body
    assert "Nothing here fits" in root.get("/topics?q=no-such-topic&sort=nothing").text
    saved = root.get(f"/topics?q={stem}&format=csv")
    assert saved.headers["content-type"].startswith("text/csv") and saved.body.count(stem) == 3
    rows = root.get(f"/topics?q={stem}", {"HX-Request": "true"})
    assert rows.body.lstrip().startswith('<div id="rows">')


def test_offsets_are_reset_after_a_preview(root: Visitor, client: lakemq.SyncClient) -> None:
    topic = unique("reset")
    client.create_topic(topic)
    client.send(topic, b"x")
    with client.subscribe(topic, group="readers", start="earliest") as consumer:
        for _ in consumer:
            consumer.commit()
            break
    page = root.get(f"/groups/readers?topic={topic}&to=earliest")
    assert "Reset 1 offsets of" in page.text and "0 1 0" in page.text
    form = {"topic": topic, "to": "earliest", "node": "node-1"}
    assert "goes on elsewhere in 1 partitions" in root.after("/group-reset/readers", form).text


def test_who_may_less_sees_why(url: str, root: Visitor, client: lakemq.SyncClient) -> None:
    topic = unique("kept")
    client.create_topic(topic)
    client.send(topic, b"secret")
    ann = Visitor(url)
    ann.log_in("ann")
    page = ann.get(f"/topics/{topic}")
    assert f"You need the right to delete topic:{topic}." in page.text
    assert f"disabled>Delete topic {topic}" in page.body
    assert "You need the right to alter the cluster." in ann.get("/cluster").text
    assert 'class="danger">Remove' not in ann.get("/cluster").body
    assert "Refused:" in ann.after(f"/topic-delete/{topic}", {"confirm": topic}).text
    page = ann.get(f"/messages?topic={topic}")
    assert 'class="note bad"' in page.body and "secret" not in page.body
    assert root.get(f"/topics/{topic}").status == 200


@pytest.mark.parametrize(
    "path",
    ["/", "/attention", "/topics", "/partitions?lacks=leaderless", "/messages", "/clients",
     "/clients-slow", "/bans", "/groups", "/schemas", "/transactions", "/schedules", "/cluster",
     "/access", "/access?operation=read&resource=topic:x&user=ann", "/plugins", "/audit",
     "/history", "/queues", "/retained", "/retained?filter=a/%2B", "/bridges", "/exports",
     "/explain", "/explain?topic_name=none", "/ledger", "/ledger-devices?topic=x&device=y",
     "/schema-new"],
)  # fmt: skip
def test_every_page_is_shown(root: Visitor, path: str) -> None:
    page = root.get(path)
    assert page.status == 200 and 'class="note bad"' not in page.body, page.text


def test_a_node_that_is_gone_is_said(tmp_path: Path) -> None:
    with dashboard_of("127.0.0.1:1") as url:
        visitor = Visitor(url)
        assert visitor.get("/livez").status == 200
        answer = visitor.log_in("root")
        assert answer.status == 502 and "does not answer" in answer.text


def test_a_node_serves_its_own_dashboard(tmp_path: Path) -> None:
    """It ends with the node, also when that is killed."""
    config = PORTS_FREE.replace("[admin]", "[admin]\ndashboard = true\ndashboard_port = 0")
    config += '[node]\nlog_level = "info"\n'  # It tells the port.
    node = NodeProcess(tmp_path, config).start()
    url = ""
    for _ in range(600):
        found = [
            line for line in node.log_file.read_text().splitlines() if "dashboard http" in line
        ]
        if found:
            url = found[0].split()[-1]
            break
        time.sleep(0.05)
    try:
        visitor = Visitor(url, "127.0.0.5")
        assert "Overview" in visitor.get("/topics").text
        assert "127.0.0.5" not in visitor.get("/audit").text
        visitor.after("/topics", {"name": "made"})
        assert "127.0.0.5" in visitor.get("/audit").text, "where visitors come from is known"
    finally:
        node.kill()
    for _ in range(600):
        try:
            Visitor(url).get("/livez")
        except OSError:
            return
        time.sleep(0.05)
    pytest.fail("the dashboard outlives its node")
