"""Where is my message? The stations of a record, or of what a client published."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import ApiProblem, segment
from lakemq.plugins.admin.dashboard.site import Site, number_of

_SINCE: Final = (
    (15 * 60, "15 minutes"), (3600, "an hour"), (24 * 3600, "a day"), (7 * 24 * 3600, "a week"),
)  # fmt: skip


class ExplainPages:
    """Asks the API's `explain`."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Sequence[Route]:
        """The page."""
        return [self._site.get_route("/explain", self._explain)]

    async def _explain(self, request: Request) -> Response:
        """By `topic`, `partition` and `offset`, or by `topic_name` and `client`."""
        asked, error, ways, found = dict(request.query_params), "", [], None
        try:
            if asked.get("topic"):
                path = "/".join(
                    segment(asked.get(name, "").strip())
                    for name in ("topic", "partition", "offset")
                )
                ways = [await self._site.get(request, f"explain/records/{path}")]
            elif asked.get("topic_name"):
                found = await self._site.get(request, "explain/publishes", _query(asked))
                ways = found["found"]
        except ApiProblem as problem:
            if problem.status == 401:
                raise
            error = problem.detail
        more = ""
        if found is not None and not found["complete"]:
            more = f"/explain?{urlencode({**asked, 'since_ms': found['next_since_ms']})}"
        return self._site.page(
            request, "explain.html", "Where is my message?", asked=asked, error=error,
            ways=[_way(each) for each in ways], found=found, more=more, since=_SINCE,
        )  # fmt: skip


def _query(asked: dict[str, str]) -> dict[str, str]:
    since_s = number_of(asked.get("since", ""), _SINCE[0][0], most=10**9)
    since_ms = number_of(asked.get("since_ms", ""), time.time_ns() // 1_000_000 - 1000 * since_s)
    query = {"topic_name": asked["topic_name"], "since_ms": str(max(0, since_ms))}
    if asked.get("client"):
        query["client"] = asked["client"]
    return query


def _way(found: Any) -> dict[str, Any]:
    """With a link to the record, where there is one."""
    at = found["offset"]
    if at is None:
        return {**found, "name": found["topic_name"] or "A publish", "link": ""}
    place = {"topic": found["topic"], "partition": found["partition"], "from": "offset", "at": at}
    name = f"{found['topic']}, partition {found['partition']}, offset {at:,}"
    return {**found, "name": name, "link": f"/messages?{urlencode(place)}"}
