"""Records of a topic: read, searched, followed, published."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import ApiProblem, segment
from lakemq.plugins.admin.dashboard.decoding import RecordTexts
from lakemq.plugins.admin.dashboard.guard import Form
from lakemq.plugins.admin.dashboard.site import Site, number_of
from lakemq.plugins.admin.dashboard.tables import Row

_FROM: Final = ("newest", "oldest", "offset", "time")
_SHOWN: Final = 50
_FETCHED: Final = 500
_SEARCH_S: Final = 5.0
_VALUE_MAX_BYTES: Final = 4096
_FOLLOW_MS: Final = 5000
_FOLLOWED_MAX: Final = 1000
"""Rows that a page which follows takes before it asks to go on."""


@dataclass(frozen=True)
class Asked:
    """What of a partition is wanted."""

    topic: str
    partition: int
    start: str
    """One of `_FROM`."""
    at: str
    """The offset, or the time (UTC)."""
    key: str
    header: str
    """`NAME=VALUE` or `NAME`."""

    @classmethod
    def of(cls, request: Request) -> Asked:
        """Read from the query; what does not fit is taken for left out."""
        query = request.query_params
        start = query.get("from", "")
        return cls(
            query.get("topic", ""), number_of(query.get("partition", ""), 0, most=10_000),
            start if start in _FROM else "newest", query.get("at", ""), query.get("key", ""),
            query.get("header", ""),
        )  # fmt: skip

    @property
    def is_search(self) -> bool:
        """Not all records are shown."""
        return bool(self.key or self.header)

    def link(self) -> str:
        """The page that shows it."""
        fields = {
            "topic": self.topic, "partition": str(self.partition), "from": self.start,
            "at": self.at, "key": self.key, "header": self.header,
        }  # fmt: skip
        return f"/messages?{urlencode({name: value for name, value in fields.items() if value})}"

    def fits(self, record: Row) -> bool:
        """Whether key and header are those that are wanted."""
        if self.key and record["key"] != self.key:
            return False
        name, equals, value = self.header.partition("=")
        return not name or any(
            each["name"] == name and (not equals or each["value"] == value)
            for each in record["headers"]
        )


@dataclass
class Found:
    """Records, and how far was looked."""

    records: list[Row]
    low: int
    high: int
    next: int
    looked: int = 0
    note: str = ""


class MessagePages:
    """Reading here commits no offset."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._texts = RecordTexts()

    def routes(self) -> Sequence[Route]:
        """Pages and forms."""
        site = self._site
        return [
            site.get_route("/messages", self._messages),
            site.get_route("/messages/more", self._more),
            site.post_route("/messages", self._publish),
        ]

    async def _messages(self, request: Request) -> Response:
        asked, found, error, partitions = Asked.of(request), None, "", 1
        if asked.topic:
            try:
                topic = await self._site.get(request, f"topics/{segment(asked.topic)}")
                partitions = topic["partitions"]
                found = await self._read(request, asked)
            except ApiProblem as problem:
                if problem.status == 401:
                    raise
                error = problem.detail
        onwards = ""
        if found is not None and found.next < found.high:
            onwards = replace(asked, start="offset", at=str(found.next)).link()
        return self._site.page(
            request, "messages.html", "Messages", asked=asked, found=found, error=error,
            partitions=partitions, starts=_FROM, onwards=onwards,
            records=await self._shown(request, found.records) if found else [],
        )  # fmt: skip

    async def _more(self, request: Request) -> Response:
        """Rows that came since, for a page that follows: waits some seconds for the first."""
        asked = Asked.of(request)
        count = number_of(request.query_params.get("count", ""), 0)
        start = number_of(asked.at, 0)
        page = await self._fetch(request, asked, start, _SHOWN, wait_ms=_FOLLOW_MS)
        records = [each for each in page["records"] if asked.fits(each)]
        onwards = replace(asked, start="offset", at=str(page["next_offset"]))
        text = self._site.templates.get_template("messages_more.html").render(
            records=await self._shown(request, records), count=count + len(records),
            most=_FOLLOWED_MAX, onwards=onwards.link(), asked=asked,
        )  # fmt: skip
        return HTMLResponse(text)

    async def _read(self, request: Request, asked: Asked) -> Found:
        path = f"topics/{segment(asked.topic)}/offsets"
        low = await self._offset(request, path, asked.partition, "earliest")
        high = await self._offset(request, path, asked.partition, "latest")
        start = await self._start(request, asked, path, low, high)
        found = Found([], low, high, start)
        if not low <= start <= high:
            found.note = f"You asked for offset {start:,}."
            found.next = high
            return found
        deadline = time.monotonic() + _SEARCH_S
        while found.next < high and len(found.records) < _SHOWN:
            room = _FETCHED if asked.is_search else _SHOWN - len(found.records)
            page = await self._fetch(request, asked, found.next, room)
            if page["next_offset"] <= found.next:
                break
            self._take(found, asked, page)
            if asked.is_search and time.monotonic() > deadline:
                found.note = "Stopped after 5 s."
                break
        return found

    def _take(self, found: Found, asked: Asked, page: Row) -> None:
        """Those that fit, until the page is full; `next` is then the offset behind the last."""
        for record in page["records"]:
            found.looked += 1
            if asked.fits(record):
                found.records.append(record)
                if len(found.records) == _SHOWN:
                    found.next = record["offset"] + 1
                    return
        found.next = page["next_offset"]

    async def _start(self, request: Request, asked: Asked, path: str, low: int, high: int) -> int:
        if asked.start == "offset":
            return number_of(asked.at, low)
        if asked.start == "time":
            return await self._offset(request, path, asked.partition, f"time:{_ms_of(asked.at)}")
        if asked.start == "oldest" or asked.is_search:
            return low
        return max(low, high - _SHOWN)

    async def _shown(self, request: Request, records: Sequence[Row]) -> Sequence[Row]:
        """With texts, decoded by the schemas that the caller may read."""

        async def ask(schema_id: int) -> Mapping[str, Any]:
            found: Mapping[str, Any] = await self._site.get(request, f"schema-ids/{schema_id}")
            return found

        return await self._texts.shown(records, ask)

    async def _offset(self, request: Request, path: str, partition: int, at: str) -> int:
        offsets = (await self._site.get(request, path, {"at": at}))["offsets"]
        if str(partition) not in offsets:
            raise ApiProblem(
                404, "UNKNOWN_PARTITION",
                f"partition {partition} can't be read: it does not exist, or has no leader",
            )  # fmt: skip
        return int(offsets[str(partition)])

    async def _fetch(
        self, request: Request, asked: Asked, offset: int, limit: int, wait_ms: int = 0
    ) -> Mapping[str, Any]:
        path = f"topics/{segment(asked.topic)}/partitions/{asked.partition}/records"
        query = {
            "offset": str(offset), "limit": str(limit), "value_max_bytes": str(_VALUE_MAX_BYTES),
        }  # fmt: skip
        if wait_ms:
            query["wait_ms"] = str(wait_ms)
        found: Mapping[str, Any] = await self._site.get(request, path, query)
        return found

    async def _publish(self, request: Request, form: Form) -> Response:
        topic = form.get("topic", "")
        record: dict[str, object] = {
            "key": form.get("key") or None,
            "value": form.get("value", ""),
            "headers": _headers(form.get("headers", "")),
        }
        query = {"partition": form["partition"]} if form.get("partition") else {}
        path = f"topics/{segment(topic)}/records"
        answer = await self._site.change(request, "POST", path, {"records": [record]}, query)
        placed = answer["outcomes"][0]
        if placed["code"]:
            raise ApiProblem(400, placed["code"], placed["detail"])
        asked = Asked(topic, placed["partition"], "newest", "", "", "")
        text = f"Stored in {topic}, partition {placed['partition']}, offset {placed['offset']:,}."
        return self._site.done(request, asked.link(), text)


def _headers(text: str) -> list[dict[str, str]]:
    """A line each: `name: value`."""
    found = []
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.append({"name": name.strip(), "value": value.strip()})
        elif line.strip():
            raise ApiProblem(400, "INVALID_REQUEST", f"header {line[:50]!r} is not NAME: VALUE")
    return found


def _ms_of(text: str) -> int:
    """`2026-11-22 10:03` (UTC) or milliseconds since 1970."""
    if text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        at = datetime.fromisoformat(text.strip().removesuffix("Z"))
    except ValueError:
        raise ApiProblem(
            400, "INVALID_REQUEST", f"{text[:50]!r} is no time: write 2026-11-22 10:03 (UTC)"
        ) from None
    return max(0, int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))
