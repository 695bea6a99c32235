"""The way of a message through this node's MQTT side, from what sessions and decisions tell.

Nothing is noted of a delivery that went well. So one is "sent" by elimination: the client was
subscribed then, the record has come by, no decision drops it, it neither waits nor is in flight.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from lakemq.broker_core.api.access import Principal, Verdict
from lakemq.broker_core.api.topic_filters import matches
from lakemq.broker_core.api.types import AccessContext, Operation, Resource
from lakemq.plugins.mqtt.ops.explain_models import (
    DECISIONS_MAX,
    DELIVERIES_MAX,
    BindingAnswer,
    DecisionAnswer,
    DeliveryAnswer,
    ExplainQuery,
    MqttExplained,
    PublisherAnswer,
)
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.routing.shared import Group
from lakemq.plugins.mqtt.state.decisions import (
    DROPS,
    PUBLISHES,
    SUBSCRIPTIONS,
    TEXT_MAX,
    Decision,
)
from lakemq.plugins.mqtt.state.sessions import Session
from lakemq.plugins.mqtt.wire.messages import Place

GiveWay = Callable[[], Awaitable[None]]
Decide = Callable[[Principal, Operation, Resource, AccessContext], Verdict]
_FILTERS_LOOKED_AT: Final = 1_000
"""Subscriptions of one session among which the matching filter is looked for."""
_WORDS: Final = {
    "no_local": "the client published it itself and asked for no local",
    "queue_full": "its queue was full",
    "expired": "it expired before it could be sent",
    "too_large": "the packet is larger than the client takes",
    "gone": "its record was no more in the journal when its turn came",
    "qos_0": "QoS 0, and the client was away or its socket was full",
}


@dataclass(frozen=True)
class _Asked:
    """The message whose way is asked for."""

    name: str
    place: Place
    at_ms: int | None


class Explainer:
    """Looks at a hub; gives way between sessions, whose queues may be long."""

    def __init__(self, hub: Hub, node_id: str, decide: Decide, give_way: GiveWay) -> None:
        self._hub = hub
        self._node_id = node_id
        self._decide = decide
        self._give_way = give_way

    async def explain(self, asked: ExplainQuery) -> MqttExplained:
        """All that this node can tell of the message."""
        hub, name = self._hub, asked.topic_name
        place = Place(asked.topic, asked.partition, asked.offset) if asked.topic else None
        match = hub.index.match(name) if name else None
        subscribers = len(match.targets) + len(match.groups) if match is not None else 0
        deliveries: list[DeliveryAnswer] = []
        reached = self._reached(place)
        if name and place is not None:
            async for each in self._deliveries(_Asked(name, place, asked.at_ms), reached):
                deliveries.append(each)
                if len(deliveries) >= DELIVERIES_MAX:
                    break
        return MqttExplained(
            node=self._node_id,
            binding=self._binding(name),
            publisher=self._publisher(asked),
            reached=reached,
            subscribers=subscribers,
            deliveries=deliveries,
            decisions=self._decisions(asked),
            known_since_ms=hub.delivery.decisions.whole_since_ms(
                *PUBLISHES, *DROPS, *SUBSCRIPTIONS
            ),
        )

    def _reached(self, place: Place | None) -> bool | None:
        if place is None:
            return None
        next_offset = self._hub.positions.get(place[:2])
        return None if next_offset is None else place.offset < next_offset

    def _binding(self, name: str) -> BindingAnswer | None:
        found = self._hub.binding(name) if name else None
        if found is None:
            return None
        return BindingAnswer(
            filter=found.topic_filter,
            topic=found.topic,
            key="client_id" if found.key_is_client_id else "topic_name",
            stores_qos_0=found.stores_qos_0,
        )

    def _publisher(self, asked: ExplainQuery) -> PublisherAnswer | None:
        session = self._hub.sessions.get(asked.client_id)
        if session is None:
            return None
        peer = session.connection
        context = AccessContext(
            "mqtt", session.client_id, peer.peer_host if peer is not None else "",
            peer.arrival.listener if peer is not None else "", asked.qos, asked.retain,
        )  # fmt: skip
        name = self._hub.topic_name(asked.topic_name)
        resource = Resource("topic_name", name)
        verdict = Verdict(False, "no topic name was asked about")
        if name:
            verdict = self._decide(session.principal, Operation.WRITE, resource, context)
        return PublisherAnswer(
            client_id=session.client_id,
            principal=session.principal.name,
            connected=peer is not None,
            connected_ms=peer.traffic.connected_ms if peer is not None else None,
            peer_host=peer.peer_host if peer is not None else None,
            may_publish=verdict.allowed,
            reason=verdict.reason,
        )

    # -- decisions

    def _decisions(self, asked: ExplainQuery) -> list[DecisionAnswer]:
        found = [
            each
            for each in self._hub.delivery.decisions.of(*PUBLISHES, *DROPS, *SUBSCRIPTIONS)
            if asked.since_ms <= each.at_ms
            and (asked.until_ms is None or each.at_ms <= asked.until_ms)
            and _is_about(each, asked)
        ]
        found.sort(key=lambda each: each.at_ms)
        return [
            DecisionAnswer(
                at_ms=each.at_ms, kind=each.kind, client_id=each.client_id, topic=each.topic,
                origin=each.origin, why=each.why or _WORDS.get(each.kind, ""), count=each.publishes,
                stored=each.place is not None,
            )
            for each in found[-DECISIONS_MAX:]
        ]  # fmt: skip

    # -- deliveries

    async def _deliveries(
        self, message: _Asked, reached: bool | None
    ) -> AsyncIterator[DeliveryAnswer]:
        decisions = self._hub.delivery.decisions
        drops = {
            each.client_id: each for each in decisions.of(*DROPS) if each.place == message.place
        }
        changes: dict[str, list[Decision]] = {}
        for each in decisions.of("subscribed", "unsubscribed"):
            if matches(each.topic, message.name):
                changes.setdefault(each.client_id, []).append(each)
        for history in changes.values():
            history.sort(key=lambda one: one.at_ms)
        match = self._hub.index.match(message.name)
        seen: set[str] = set()
        for target in list(match.targets):
            await self._give_way()
            session = target.session
            seen.add(session.client_id)
            found = _filter_of(session, message.name)
            yield self._delivery(session, found, message, drops, changes, reached)
        for group in list(match.groups):
            await self._give_way()
            seen.update(one.session.client_id for one in group.members)
            yield self._shared(group, message, drops, changes, reached)
        for client_id, history in changes.items():
            ended = history[-1]
            then = message.at_ms is not None and _was_subscribed(history, message.at_ms)
            if client_id not in seen and then:
                drop = drops.get(client_id)
                yield DeliveryAnswer(
                    client_id=client_id,
                    filter=ended.topic,
                    group=None,
                    state="ended" if drop is None else "dropped",
                    at_ms=ended.at_ms if drop is None else drop.at_ms,
                    reason="its subscription ended later; no drop is noted before that"
                    if drop is None
                    else _WORDS[drop.kind],
                )

    def _delivery(
        self,
        session: Session,
        topic_filter: str,
        message: _Asked,
        drops: dict[str, Decision],
        changes: dict[str, list[Decision]],
        reached: bool | None,
        group: str | None = None,
    ) -> DeliveryAnswer:
        def answer(state: str, at_ms: int | None, reason: str) -> DeliveryAnswer:
            return DeliveryAnswer.model_validate(
                {
                    "client_id": session.client_id, "filter": topic_filter, "group": group,
                    "state": state, "at_ms": at_ms, "reason": reason,
                }
            )  # fmt: skip

        drop = drops.get(session.client_id)
        if drop is not None:
            return answer("dropped", drop.at_ms, _WORDS[drop.kind])
        outbound = session.outbound
        for delivery in outbound.inflight.values():
            if delivery.place == message.place:
                return answer("in_flight", delivery.offered_ms or None, "not acknowledged yet")
        for ahead, delivery in enumerate(outbound.queue or ()):
            if delivery.place == message.place:
                why = "away" if session.connection is None else "slow, or its window is full"
                text = f"{ahead} before it in the queue; the client is {why}"
                return answer("waiting", delivery.offered_ms or None, text)
        history = changes.get(session.client_id, [])
        if message.at_ms is not None and history and not _was_subscribed(history, message.at_ms):
            return answer("subscribed_later", history[-1].at_ms, "it subscribed after the publish")
        if reached is False:
            return answer("not_reached", None, "the record has not come by this node yet")
        since = self._hub.delivery.decisions.whole_since_ms(*DROPS, *SUBSCRIPTIONS)
        if since is None or message.at_ms is None or message.at_ms < since:
            return answer(
                "sent", None,
                "neither waiting nor in flight now; what was decided then is not held any more",
            )  # fmt: skip
        return answer("sent", None, "neither dropped, nor waiting, nor in flight: it was sent")

    def _shared(
        self,
        group: Group,
        message: _Asked,
        drops: dict[str, Decision],
        changes: dict[str, list[Decision]],
        reached: bool | None,
    ) -> DeliveryAnswer:
        """One member got it: the one that has it still tells so; of a finished one nothing does."""
        first: DeliveryAnswer | None = None
        for member in islice(group.members, DELIVERIES_MAX):
            topic_filter = member.address.topic_filter
            found = self._delivery(
                member.session, topic_filter, message, drops, changes, reached, group.name
            )
            if found.state in ("dropped", "in_flight", "waiting"):
                return found
            if first is None or found.state != "subscribed_later":
                first = found
        assert first is not None  # a group without members is removed
        if first.state != "sent" or len(group.members) == 1:
            return first
        some = f"one of {len(group.members)} members of the group; {first.reason}"
        return first.model_copy(update={"client_id": "", "reason": some})


def _is_about(decision: Decision, asked: ExplainQuery) -> bool:
    """Whether it is about the client or the topic name that was asked for; all that was asked for
    must fit, as far as the decision tells it."""
    name = asked.topic_name[:TEXT_MAX]
    if decision.kind in SUBSCRIPTIONS:
        return bool(name) and matches(decision.topic, asked.topic_name)
    publisher = decision.client_id if decision.kind in PUBLISHES else decision.origin
    if asked.client_id and publisher != asked.client_id:
        return False
    if name:
        # What was not stored is known by its packet identifier alone.
        return decision.topic == name or (bool(asked.client_id) and not decision.topic)
    return bool(asked.client_id)


def _was_subscribed(history: Iterable[Decision], at_ms: int) -> bool:
    """Whether the client was subscribed at that time; `history`: oldest first, never empty."""
    changes = list(history)
    subscribed = changes[0].kind == "unsubscribed"  # before the first: what that one changed
    for each in changes:
        if each.at_ms > at_ms:
            break
        subscribed = each.kind == "subscribed"
    return subscribed


def _filter_of(session: Session, name: str) -> str:
    """The filters by which the session gets a topic name."""
    found = [
        one.address.topic_filter
        for one in islice(session.subscriptions.values(), _FILTERS_LOOKED_AT)
        if matches(one.address.topic_filter, name)
    ]
    return ", ".join(islice(chain(found), 10)) or "(one of its subscriptions)"
