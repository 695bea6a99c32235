"""Messages hold what values hold, absent fields included."""

from __future__ import annotations

import pytest

from lakemq.meta_service.api.convert import node_message, node_of, status_message, status_of
from lakemq.meta_service.api.messages import message_of, value_of
from lakemq.meta_service.api.schemas import Subject
from lakemq.meta_service.api.types import MetaStatus, NodeRegistration
from lakemq.meta_service.proto import schemas_pb2


@pytest.mark.parametrize("compatibility", [None, "full"])
@pytest.mark.parametrize("versions", [(), ((1, 7), (3, 9))])
def test_a_subject(compatibility: str | None, versions: tuple[tuple[int, int], ...]) -> None:
    subject = Subject("s", compatibility, 3, versions, 12)
    message = message_of(schemas_pb2.Subject, subject)
    assert [(each.version, each.schema_id) for each in message.versions] == list(versions)
    assert message.compatibility == (compatibility or "")
    assert value_of(Subject, message) == subject


def test_a_node() -> None:
    node = NodeRegistration("n", {"x": "h:1"}, "r", "1", 2, 9, "fenced", True, "0" * 32)
    assert node_of(node_message(node)) == node
    assert node_message(node).storage_id == "0" * 32


@pytest.mark.parametrize("leader", [None, "n"])
def test_a_status(leader: str | None) -> None:
    status = MetaStatus("c", "m", leader, 1, 2, 3, 4, ("m", "n"), {"lag": "0"})
    assert status_of(status_message(status)) == status
