"""MQTT sessions and shared subscriptions in the pure catalog."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_service.api.errors import InvalidArgument
from meta_service.api.mqtt import NEVER, MqttSession, SharedGroup
from meta_service.catalog import mqtt as mqtt_module
from meta_service.catalog.command_codec import Command, encode_command
from meta_service.catalog.commands import SetFeatureLevel
from meta_service.catalog.mqtt import (
    ClaimSession,
    EndSession,
    ExpireMqttSessions,
    JoinShared,
    LeaveShared,
    ReleaseSession,
    SaveSession,
    decode_session,
    decode_shared,
    session_key,
    shared_key,
)
from tests.unit.meta_service.meta_catalog_rig import Catalog


def ready() -> Catalog:
    catalog = Catalog()
    catalog.do(SetFeatureLevel(2))
    return catalog


def claim(
    catalog: Catalog,
    node: str = "n1",
    *,
    clean: bool = False,
    expiry_s: int = 60,
    now_ms: int = 1000,
) -> list[object]:
    result = catalog.do(ClaimSession("c", node, clean, expiry_s, now_ms)).result
    assert not result.code, result
    told: list[object] = result.payload
    return told


def session(catalog: Catalog) -> MqttSession | None:
    value = catalog.value(session_key("c"))
    return decode_session(session_key("c"), value, 0) if value is not None else None


def test_a_takeover_keeps_the_state_and_fences_the_old_node() -> None:
    catalog = ready()
    assert claim(catalog, "n1") == [1, None, False, b""]
    assert not catalog.do(SaveSession("c", 1, b"subscriptions")).result.code
    assert claim(catalog, "n2") == [3, "n1", True, b"subscriptions"]
    for late in (
        SaveSession("c", 1, b"x"),
        ReleaseSession("c", 1, None, 2000),
        EndSession("c", 1),
    ):
        assert catalog.do(late).result.code == "COMPARE_FAILED"
    now = session(catalog)
    assert now is not None
    assert (now.node_id, now.epoch, now.connected, now.state) == ("n2", 3, True, b"subscriptions")


def test_a_clean_start_begins_anew() -> None:
    catalog = ready()
    claim(catalog)
    catalog.do(SaveSession("c", 1, b"old"))
    assert claim(catalog, clean=True) == [3, "n1", False, b""]


@pytest.mark.parametrize(
    ("expiry_s", "now_ms", "there"),
    [(0, 0, False), (60, 60_999, True), (60, 61_000, False), (NEVER, 2**50, True)],
)
def test_a_session_outlives_its_connection_by_its_time(
    expiry_s: int, now_ms: int, there: bool
) -> None:
    catalog = ready()
    claim(catalog)
    assert not catalog.do(ReleaseSession("c", 1, expiry_s, 1000)).result.code
    catalog.do(ExpireMqttSessions(("c", "nobody"), now_ms))
    assert (session(catalog) is not None) is there
    assert claim(catalog, now_ms=now_ms)[2] is there


def test_a_session_claimed_again_does_not_expire() -> None:
    catalog = ready()
    claim(catalog)
    catalog.do(ReleaseSession("c", 1, 1, 1000))
    claim(catalog, now_ms=1500)
    assert catalog.do(ExpireMqttSessions(("c",), 10_000)).result.payload == 0
    assert session(catalog) is not None


def test_an_expired_session_nobody_cleared_away_yet_is_not_present() -> None:
    catalog = ready()
    claim(catalog)
    catalog.do(SaveSession("c", 1, b"old"))
    catalog.do(ReleaseSession("c", 1, 1, 1000))
    assert claim(catalog, now_ms=5000)[1:] == [None, False, b""]


def shared(catalog: Catalog) -> SharedGroup | None:
    key = shared_key("g", "a/#")
    value = catalog.value(key)
    return decode_shared(key, value, 0) if value is not None else None


def join(catalog: Catalog, client: str, node: str) -> str:
    return catalog.do(JoinShared("g", "a/#", client, node)).result.code


def test_a_group_is_handed_out_by_a_node_that_has_members() -> None:
    catalog = ready()
    for client, node in (("c1", "n1"), ("c2", "n2"), ("c3", "n1")):
        assert join(catalog, client, node) == ""
    group = shared(catalog)
    assert group is not None
    assert (group.group, group.topic_filter, group.coordinator) == ("g", "a/#", "n1")
    assert group.members == (("c1", "n1"), ("c2", "n2"), ("c3", "n1"))
    coordinators = []
    for client in ("c1", "c3", "c2"):
        assert not catalog.do(LeaveShared("g", "a/#", client)).result.code
        group = shared(catalog)
        coordinators.append(group.coordinator if group else None)
    assert coordinators == ["n1", "n2", None]
    assert catalog.do(LeaveShared("g", "a/#", "c2")).result.code == "NOT_FOUND"


def test_a_group_has_so_many_members_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_module, "MEMBERS_MAX", 2)
    catalog = ready()
    assert [join(catalog, c, "n") for c in ("a", "b", "a", "c")] == ["", "", "", "OVERLOADED"]


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (ClaimSession("", "n", False, 0, 0), "client_id"),
        (ClaimSession("c" * 1025, "n", False, 0, 0), "client_id"),
        (ClaimSession("c", "n/", False, 0, 0), "node_id"),
        (ClaimSession("c", "n", False, NEVER + 1, 0), "expiry_s"),
        (SaveSession("c", 1, bytes(65537)), "state"),
        (ExpireMqttSessions(("c",) * 1001, 0), "client_ids"),
        (JoinShared("g/h", "a", "c", "n"), "group"),
        (JoinShared("g", "", "c", "n"), "topic_filter"),
    ],
)
def test_bad_fields_are_named(command: Command, field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        encode_command(command)


def test_a_claim_by_the_same_node_fences_its_older_connection() -> None:
    catalog = ready()
    first, second = claim(catalog, "n1")[0], claim(catalog, "n1")[0]
    assert isinstance(first, int) and isinstance(second, int)
    assert first < second
    for late in (SaveSession("c", first, b"x"), ReleaseSession("c", first, 0, 0),
                 EndSession("c", first)):  # fmt: skip
        assert catalog.do(late).result.code == "COMPARE_FAILED"
    now = session(catalog)
    assert now is not None and now.connected
    assert not catalog.do(EndSession("c", second)).result.code


_actions = st.tuples(
    st.sampled_from(["claim", "claim", "save", "release", "end", "expire"]),
    st.sampled_from(["n1", "n2"]),
    st.integers(0, 2),
)


@given(st.lists(_actions, max_size=15))
def test_a_session_is_served_by_one_claim_only(actions: list[tuple[str, str, int]]) -> None:
    """Each connection that claimed it, also one of the same node, believes that it serves until it
    is told otherwise; the catalog obeys the newest."""
    catalog, claims = ready(), list[tuple[str, int]]()
    for now_s, (what, node, age) in enumerate(actions):
        if what == "claim":
            epoch = int(str(claim(catalog, node, expiry_s=1, now_ms=now_s * 1000)[0]))
            assert not claims or epoch > claims[-1][1]
            claims.append((node, epoch))
        elif what == "expire":
            catalog.do(ExpireMqttSessions(("c",), now_s * 1000))
        elif age < len(claims):
            by, epoch = claims[-1 - age]
            commands: dict[str, Command] = {
                "save": SaveSession("c", epoch, by.encode()),
                "release": ReleaseSession("c", epoch, None, now_s * 1000),
                "end": EndSession("c", epoch),
            }
            code = catalog.do(commands[what]).result.code
            assert code in ("NOT_FOUND", "COMPARE_FAILED" if age else "")
        now = session(catalog)
        assert now is None or (now.node_id, now.epoch) == claims[-1]
