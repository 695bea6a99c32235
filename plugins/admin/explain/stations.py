"""What is known of a message -> the stations of its way. Pure: takes answers of the admin API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from lakemq.plugins.admin.explain.models import Station, StationState

Json = Mapping[str, Any]
CLIENT: Final = "mqtt.client"
TOPIC_NAME: Final = "mqtt.topic"
_QOS: Final = "mqtt.qos"
_QOS_2_ID: Final = "mqtt.qos2_id"
PUBLISH_KINDS: Final = ("refused", "not_stored", "no_subscriber")
SUBSCRIPTION_KINDS: Final = ("subscribe_refused", "subscribed", "unsubscribed")
_DELIVERY_STATES: Final[Mapping[str, StationState]] = {
    "sent": "ok",
    "in_flight": "waiting",
    "waiting": "waiting",
    "dropped": "failed",
    "subscribed_later": "failed",
    "ended": "unknown",
    "not_reached": "waiting",
}
_DELIVERY_WORDS: Final = {
    "sent": "sent",
    "in_flight": "sent and not acknowledged",
    "waiting": "waits in the queue of the session",
    "dropped": "not delivered",
    "subscribed_later": "not delivered",
    "ended": "was subscribed then; its subscription has ended",
    "not_reached": "not delivered yet",
}


def headers_of(record: Json) -> dict[str, str]:
    """Text headers of a record of the admin API."""
    return {
        each["name"]: each["value"] or ""
        for each in record["headers"]
        if each["encoding"] == "text"
    }


def topic_name_of(record: Json) -> str:
    """The MQTT topic name of a record: its header's, or its key; empty: it has none."""
    name = headers_of(record).get(TOPIC_NAME)
    if name is None:
        name = record["key"] if record["key_encoding"] == "text" else ""
    return name if name and not set(name) & set("+#\0") else ""


def published(record: Json) -> Station:
    """Who published it."""
    headers = headers_of(record)
    client_id, at_ms = headers.get(CLIENT), record["timestamp_ms"]
    if client_id is None:
        return Station(
            station="published", state="ok", at_ms=at_ms, what="by no MQTT client but a producer",
            proof=f"time of the record; it has no header {CLIENT}",
        )  # fmt: skip
    qos = headers.get(_QOS, "?")
    packet = headers.get(_QOS_2_ID, "").rpartition("/")[2]
    shown = f", packet {packet}" if packet else ""
    return Station(
        station="published", state="ok", at_ms=at_ms, who=client_id,
        what=f"client {client_id} published to {topic_name_of(record)} at QoS {qos}{shown}",
        proof=f"headers {CLIENT} and {_QOS} of the record; the time when the broker took it",
    )  # fmt: skip


def authorized(client_id: str, mqtt: Sequence[Json], *, stored: bool) -> Station:
    """Which rule let the publisher publish."""
    for each in mqtt:
        found = each["publisher"]
        if found is None:
            continue
        verb = "allowed" if found["may_publish"] else "denied"
        who = f"user {found['principal']}"
        if stored and not found["may_publish"]:
            what, state = f"{who} was allowed then, and is denied now: {found['reason']}", "ok"
        else:
            what = f"{who} is {verb}: {found['reason']}"
            state = "ok" if found["may_publish"] else "failed"
        return Station.model_validate(
            {"station": "authorized", "state": state, "node": each["node"], "who": client_id,
             "what": what, "proof": "the rules as they are now, for the user of the session"}
        )  # fmt: skip
    return Station(
        station="authorized", state="ok" if stored else "unknown", who=client_id,
        what="allowed, by a rule that is not known any more" if stored else "not known",
        proof=f"no node has a session of client {client_id}"
        + ("; a publish that is denied is not stored" if stored else ""),
    )  # fmt: skip


def bound(topic_name: str, mqtt: Sequence[Json], topic: str) -> Station | None:
    """The binding of a topic name; `topic`: where the record lies, empty: nowhere. None: no node
    speaks MQTT."""
    if not mqtt:
        return None
    binding = next((each["binding"] for each in mqtt if each["binding"] is not None), None)
    if binding is None:
        return Station(
            station="bound", state="failed" if not topic else "ok",
            what=f"no binding takes {topic_name}: publishes pass through memory alone",
            proof="[[plugins.mqtt.bindings]] of each node",
        )  # fmt: skip
    shown = f"binding {binding['filter']} -> topic {binding['topic']}, key {binding['key']}"
    if not binding["stores_qos_0"]:
        shown += "; QoS 0 is not stored"
    if topic and binding["topic"] != topic:
        shown += f"; the record lies in {topic}, where an earlier binding or a producer put it"
    return Station(
        station="bound", state="ok", what=shown, proof="[[plugins.mqtt.bindings]], as it is now"
    )


def stored(topic: str, partition: int, record: Json, held: Json) -> Station:
    """Where the record lies."""
    key = "without a key" if record["key"] is None else f"key {record['key'][:100]}"
    return Station(
        station="stored", state="ok", at_ms=record["timestamp_ms"], node=held["leader"] or "",
        what=f"topic {topic}, partition {partition}, offset {record['offset']}, {key}, "
        f"{record['value_bytes']} bytes",
        proof=f"read from the journal; leader epoch {held['leader_epoch']} now",
    )  # fmt: skip


def not_stored(
    topic: str, partition: int, offset: int, start: int, high_watermark: int, held: Json
) -> Station:
    """Why there is no record at the offset."""
    if offset >= high_watermark:
        state: StationState = "waiting"
        what = f"offset {offset} is not there yet: readers see offsets below {high_watermark}"
    elif offset < start:
        state = "failed"
        what = f"offset {offset} was deleted: the log starts at {start} (retention, delete-records)"
    else:
        state = "failed"
        what = f"offset {offset} holds no record: it was compacted away, or is a control record"
    return Station(
        station="stored", state=state, node=held["leader"] or "",
        what=f"topic {topic}, partition {partition}: {what}", proof="the log of the leader",
    )  # fmt: skip


def durable(offset: int, held: Json, log: Json | None) -> Station:
    """On which nodes' disks the record is."""
    if log is None:
        return Station(
            station="durable", state="unknown", what="not known",
            proof=f"the leader ({held['leader'] or 'none'}) does not answer",
        )  # fmt: skip
    end, mark = log["log_end_offset"], log["high_watermark"]
    ends = {log["node"]: end}
    ends |= {node: end - lag for node, lag in sorted(log["lags"].items()) if node != log["node"]}
    having = sorted(node for node, each in ends.items() if each > offset)
    in_sync = [node for node in held["in_sync"] if node in having or offset < mark]
    lacking = [node for node in held["replicas"] if node not in {*having, *in_sync}]
    what = f"on disk of {', '.join(in_sync or having)}"
    if offset >= mark:
        what = f"appended on {log['node']}; in-sync replicas have not all confirmed it"
    if lacking:
        what += f"; not yet on {', '.join(lacking)}"
    shown = ", ".join(f"{node} ends at {each}" for node, each in ends.items())
    return Station(
        station="durable", state="ok" if offset < mark else "waiting", node=log["node"], what=what,
        proof=f"high watermark {mark}, in sync {', '.join(held['in_sync'])}; {shown}",
    )  # fmt: skip


def deliveries(at_ms: int, mqtt: Sequence[Json]) -> Iterator[Station]:
    """What became of the record at each MQTT subscriber."""
    count = 0
    for each in mqtt:
        for found in each["deliveries"]:
            count += found["state"] != "subscribed_later"
            yield _delivery(each["node"], found)
        left = each["subscribers"] - len(each["deliveries"])
        if left > 0:
            count += left
            yield Station(
                station="delivered", state="unknown", node=each["node"],
                what=f"{left} more subscribers, which are not shown",
            )  # fmt: skip
        for decision in each["decisions"]:
            if decision["kind"] == "subscribe_refused" and decision["at_ms"] <= at_ms:
                yield Station(
                    station="delivered", state="failed", at_ms=decision["at_ms"],
                    node=each["node"], who=decision["client_id"],
                    what=f"{decision['client_id']} was refused the subscription to "
                    f"{decision['topic']}: {decision['why']}", proof="a decision of that time",
                )  # fmt: skip
    if mqtt and not count:
        yield Station(
            station="delivered", state="failed", what="no subscriber: no client was subscribed",
            proof=_known(mqtt),
        )  # fmt: skip


def _delivery(node: str, found: Json) -> Station:
    who = found["client_id"] or f"group {found['group']}"
    shown = _DELIVERY_WORDS[found["state"]]
    failed = found["state"] in ("dropped", "subscribed_later")
    what = f"{who} ({found['filter']}): {shown}" + (f": {found['reason']}" if failed else "")
    return Station(
        station="delivered", state=_DELIVERY_STATES[found["state"]], at_ms=found["at_ms"],
        node=node, who=who, what=what,
        proof="a decision of that time" if found["state"] == "dropped" else found["reason"],
    )  # fmt: skip


def _known(mqtt: Sequence[Json]) -> str:
    shown = [f"{each['node']} {_since(each['known_since_ms'])}" for each in mqtt]
    return f"subscriptions now, and their changes as far as they are held: {', '.join(shown)}"


def _since(at_ms: int | None) -> str:
    if at_ms is None:
        return "none"
    return f"since {datetime.fromtimestamp(at_ms / 1000, UTC).strftime('%Y-%m-%dT%H:%M:%SZ')}"


def group(name: str, node: str, found: Json, offset: int) -> Station:
    """Whether a consumer group is past the record."""
    committed = found["committed_offset"]
    if committed is not None and committed > offset:
        return Station(
            station="group", state="ok", at_ms=found["committed_ms"], node=node, who=name,
            what=f"group {name} is past it: it committed {committed}", proof="the committed offset",
        )  # fmt: skip
    at = "nothing" if committed is None else str(committed)
    return Station(
        station="group", state="waiting", node=node, who=name,
        what=f"group {name} has committed {at}: {offset + 1 - (committed or 0)} records to go",
        proof="the committed offset",
    )  # fmt: skip


def decided(node: str, decision: Json) -> Station:
    """A decision about a publish that has no record."""
    kind, count = decision["kind"], decision["count"]
    times = f" ({count} publishes)" if count > 1 else ""
    if kind in PUBLISH_KINDS:
        words = {
            "refused": ("authorized", f"client {decision['client_id']} was refused"),
            "not_stored": ("stored", f"a publish of client {decision['client_id']} was not stored"),
            "no_subscriber": ("delivered", "no subscriber, and no topic that stores it"),
        }
        station, what = words[kind]
    else:
        station, what = "delivered", f"{decision['client_id']}: not delivered"
    why = f": {decision['why']}" if decision["why"] else ""
    return Station.model_validate(
        {"station": station, "state": "failed", "at_ms": decision["at_ms"], "node": node,
         "who": decision["client_id"], "what": f"{what}{why}{times}",
         "proof": "a decision of that time"}
    )  # fmt: skip
