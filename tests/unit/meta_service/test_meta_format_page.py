"""The bytes on docs/formats/meta.md are those that the code writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemq.meta_service.api.backup_head import BackupNote, encode_head
from lakemq.meta_service.catalog.command_codec import encode_command
from lakemq.meta_service.catalog.commands import Txn
from lakemq.meta_service.catalog.tables import Row, State, encode_row, encode_state
from lakemq.meta_service.raft.log.log_format import (
    Entry,
    encode_log_header,
    encode_record,
    encode_vote,
)

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "meta.md"


@pytest.mark.parametrize(
    "data",
    [
        encode_log_header(),
        encode_record(Entry(b"\x00hi", 7, 2), 6),
        encode_vote(9, "n2"),
        encode_command(Txn(((b"a", 0),), ((b"a", b"1", 0),))),
    ],
    ids=["header", "record", "vote", "command"],
)
def test_examples_are_what_is_written(data: bytes) -> None:
    assert data.hex() in PAGE.read_text().replace(" ", "")


def test_sizes_are_those_of_the_page() -> None:
    assert len(encode_record(Entry(b"", 1, 1), 0)) == 40
    assert len(encode_row(Row(b"", 1, 1, 1))) == 32
    assert len(encode_state(State())) == 76
    assert len(encode_head(BackupNote(1, 1, 1, "0" * 32))) == 8 + 4 + 56
