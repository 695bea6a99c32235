"""Goal: what a client believes of a cluster follows what it is told, and never goes back."""

from __future__ import annotations

from lakemq.broker_core.api.errors import NotLeader, Unavailable, UnknownPartition, UnknownTopic
from lakemq.plugins.native.sdk.net.cluster_view import (
    AVOIDED_S,
    HERE,
    METADATA_LAG_S,
    ClusterView,
    ReadRoute,
    Route,
)


def view() -> ClusterView:
    found = ClusterView()
    found.connected("a")
    found.set_nodes({"a": "a:1", "b": "b:1"})
    found.set_topic("t", [("a", 3), ("b", 4), ("", 5), ("c", 6)])
    return found


def test_routes() -> None:
    found = view()
    assert found.route("t", 0) == Route("", 3)
    assert found.route("t", 1) == Route("b:1", 4)
    assert found.route("t", 2) == Route("", 5)
    assert found.route("t", 3) == Route("", 6), "an address that is not known is asked for here"
    assert found.route("t", 9) == found.route("u", 0) == HERE
    assert found.partitions("t") == 4 and found.partitions("u") is None


def test_a_refusal_teaches_what_is_newer() -> None:
    found = view()
    assert not found.learn("t", 1, NotLeader("", leader="a", address="a:1", epoch=3))
    assert found.route("t", 1) == Route("b:1", 4)
    assert found.learn("t", 1, NotLeader("", leader="c", address="c:1", epoch=5))
    assert found.route("t", 1) == Route("c:1", 5)
    assert found.route("t", 3) == Route("c:1", 6), "its address holds for all its partitions"
    assert not found.learn("t", 0, NotLeader("", leader=""))
    assert found.learn("new", 2, NotLeader("", leader="b", epoch=0))
    assert found.route("new", 2) == Route("b:1", 0)


def test_an_address_that_comes_later_is_taken() -> None:
    found = ClusterView()
    assert found.learn("t", 0, NotLeader("", leader="b", epoch=0))
    assert found.route("t", 0).address == ""
    assert not found.learn("t", 0, NotLeader("", leader="b", address="b:1", epoch=0))
    assert found.route("t", 0).address == "b:1"


def test_another_node_tells_all_anew() -> None:
    found = view()
    version = found.version
    found.connected("b")
    assert found.version > version and found.route("t", 1) == HERE
    found.set_topic("t", [("a", 3), ("b", 4)])
    assert found.route("t", 0) == Route("a:1", 3) and found.route("t", 1) == Route("", 4)
    found.remove_topic("t")
    assert found.topics() == []


def test_only_other_nodes_may_be_behind() -> None:
    found = view()
    assert found.may_lag(UnknownTopic("t"), "t", "b:1", 100.0)
    assert not found.may_lag(UnknownTopic("t"), "t", "", 0.0)
    assert not found.may_lag(Unavailable(""), "t", "b:1", 100.0)


def test_any_node_may_be_behind_a_topic_of_our_own() -> None:
    found = view()
    found.created("own", 100.0)
    found.created("other", 101.0)
    assert found.may_lag(UnknownPartition("own"), "own", "", 99.9 + METADATA_LAG_S)
    assert not found.may_lag(UnknownTopic("own"), "own", "", 100.0 + METADATA_LAG_S)
    assert not found.may_lag(Unavailable(""), "own", "", 100.0)
    found.deleted("other")
    assert not found.may_lag(UnknownTopic("other"), "other", "", 101.0)


def test_a_stream_that_is_still_at_the_former_bootstrap_node_is_sent_on() -> None:
    found = ClusterView()
    found.connected("b")
    found.set_topic("t", [("b", 1)])
    assert found.route("t", 0) == Route("", 1)
    found.learn("t", 0, NotLeader("not by a", leader="b", address="b:1", epoch=1))
    assert found.route("t", 0) == Route("b:1", 1)


def racked() -> ClusterView:
    found = view()
    found.set_nodes(
        {"a": "a:1", "b": "b:1", "c": "c:1", "d": "d:1"},
        {"a": "x", "b": "y/1", "c": "y/2", "d": "y2"},
    )
    found.set_topic(
        "t",
        [("a", 3), ("b", 4), ("a", 5), ("a", 6)],
        [("a", "b", "c"), ("b", "c"), ("a", "d"), ("a", "b", "c")],
    )
    return found


def test_streams_are_read_from_a_replica_in_the_rack_that_is_in_sync() -> None:
    found = racked()
    assert found.read_route("t", 0, "y", 0.0) == ReadRoute("b:1", 3, True)
    assert found.read_route("t", 3, "y", 0.0) == ReadRoute("c:1", 6, True), "spread over both"
    assert found.read_route("t", 0, "y/2", 0.0) == ReadRoute("c:1", 3, True)
    assert found.read_route("t", 1, "y", 0.0) == ReadRoute("b:1", 4, False), "the leader is there"
    assert found.read_route("t", 2, "y", 0.0) == ReadRoute("", 5, False), "y2 is another rack"
    assert found.read_route("t", 0, "", 0.0) == ReadRoute("", 3, False)
    assert found.read_route("t", 0, "z", 0.0) == ReadRoute("", 3, False)
    assert found.read_route("u", 0, "y", 0.0) == ReadRoute("", 0, False)


def test_a_follower_that_could_not_serve_is_left_alone_for_a_time() -> None:
    found = racked()
    found.avoid("t", 0, "b:1", 100.0)
    assert found.read_route("t", 0, "y", 100.0 + AVOIDED_S - 1) == ReadRoute("", 3, False)
    assert found.read_route("t", 0, "y", 100.0 + AVOIDED_S) == ReadRoute("b:1", 3, True)
    assert found.read_route("t", 3, "y", 100.0).follower, "other partitions are not meant"
    found.remove_topic("t")
    assert found.read_route("t", 0, "y", 0.0) == ReadRoute("", 0, False)
