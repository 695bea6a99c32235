"""Goal: a node speaks for itself only, in its present registration."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.errors import LakeMQError, NotAuthenticated, StaleEpoch, Unavailable
from lakemq.broker_core.cluster.identity import (
    Peer,
    PeerBook,
    PeerIdentity,
    metadata_of,
    names_of,
)

REGISTERED = {"n1": 1, "n2": 5}


def identity(node: str = "n1", cluster: str = "c", epoch: int = 1) -> PeerIdentity:
    return PeerIdentity(node, cluster, lambda: epoch)


def book() -> PeerBook:
    return PeerBook(identity(), lambda: REGISTERED)


def said(node: str = "n2", cluster: str = "c", epoch: int = 5) -> dict[str, str]:
    return dict(identity(node, cluster, epoch).metadata())


def test_a_registered_node_is_accepted() -> None:
    assert book().accept(said(), None) == Peer("n2", 5)
    assert book().accept(said(), ["other", "n2"]) == Peer("n2", 5)


@pytest.mark.parametrize(
    ("metadata", "names", "error"),
    [
        (said(), ["n3"], NotAuthenticated),
        (said(), [], NotAuthenticated),
        (said(cluster="d"), None, NotAuthenticated),
        ({}, None, NotAuthenticated),
        (said(node="n3"), None, Unavailable),
        (said(node="n1"), None, Unavailable),
        (said(epoch=4), None, StaleEpoch),
        ({**said(), "lakemq-broker-epoch": "-1"}, None, NotAuthenticated),
        ({**said(), "lakemq-broker-epoch": "٣"}, None, NotAuthenticated),
        ({**said(), "lakemq-broker-epoch": "9" * 19}, None, NotAuthenticated),
    ],
)
def test_others_are_refused(
    metadata: dict[str, str], names: list[str] | None, error: type[LakeMQError]
) -> None:
    with pytest.raises(error):
        book().accept(metadata, names)


def test_a_process_that_has_been_replaced_is_refused() -> None:
    """Also before the catalog's list of nodes has been read again."""
    known = book()
    assert known.accept(said(epoch=9), None) == Peer("n2", 9)
    with pytest.raises(StaleEpoch, match="5; 9 is known"):
        known.accept(said(epoch=5), None)


def test_a_caller_notices_that_another_node_answers() -> None:
    book().check_callee("n2", said())
    for found in (said(node="n3"), said(cluster="d"), {}):
        with pytest.raises(NotAuthenticated, match="at the address of 'n2'"):
            book().check_callee("n2", found)


def test_metadata_and_certificates_are_read_as_grpc_gives_them() -> None:
    assert metadata_of((("a", "b"), ("x-bin", b"\0"))) == {"a": "b"}
    assert metadata_of(None) == {}
    assert names_of({"x509_subject_alternative_name": [b"n2", b"\xff"]}) == ["n2", "\ufffd"]
    assert names_of({}) == []
